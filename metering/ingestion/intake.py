"""Storing a batch of outside events, each once, and answering for every one of them.

Ids, detail and the queue of what waits to be rated are written in one transaction: there is no
moment at which an id is taken and its usage is not there. The batch goes once into a temporary
table, by COPY on PostgreSQL, and from there into the three: Python touches each event once. All of
it is taken to be new; only where an id turns out to be there already is it looked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import Connection, select, tuple_
from sqlalchemy import Engine as Database
from sqlalchemy.exc import IntegrityError

from metering import clock
from metering.database import snapshot, transaction
from metering.ingest_tables import event_ids
from metering.ingestion import partitions
from metering.ingestion.envelopes import OutsideEvent, Rejection

CHUNK = 400
# Of an event's own fields, in their order.
_COLUMNS = ("tenant_id", "source", "id", "event_time_us", "body", "body_sha256")
_STAGING = (
    "CREATE TEMP TABLE IF NOT EXISTS staged_events (tenant_id text, source text, id text,"
    " event_time_us bigint, body text, body_sha256 text)"
)
_COPY = f"COPY staged_events ({', '.join(_COLUMNS)}) FROM STDIN"
_INSERT_IDS = (
    "INSERT INTO event_ids (tenant_id, source, id, body_sha256, ingested_at_us)"
    " SELECT tenant_id, source, id, body_sha256, {now} FROM staged_events"
)
_INSERT_DETAIL = (
    "INSERT INTO outside_usage (tenant_id, source, id, event_time_us, ingested_at_us, key_id, body)"
    " SELECT tenant_id, source, id, event_time_us, {now}, {key_id}, body FROM staged_events"
)
_INSERT_WAITING = (
    "INSERT INTO outside_waiting (tenant_id, source, id, event_time_us, ingested_at_us)"
    " SELECT tenant_id, source, id, event_time_us, {now} FROM staged_events"
)
_SQLITE = [
    statement.format(now=":now", key_id=":key_id")
    for statement in (_INSERT_IDS, _INSERT_DETAIL, _INSERT_WAITING)
]
# Ids first and in one order everywhere: batches that share some never wait in a circle.
_POSTGRESQL = (
    f"WITH detail AS ({_INSERT_DETAIL}), waiting AS ({_INSERT_WAITING})"
    f" {_INSERT_IDS} ORDER BY tenant_id, source, id"
).format(now="%(now)s", key_id="%(key_id)s")


class Result(StrEnum):
    """What became of an event."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # stored before with the same body: nothing to do
    CONFLICT = "conflict"  # stored before with another body: the first one stays
    REJECTED = "rejected"


class Answer(msgspec.Struct, frozen=True, gc=False):
    """What became of one event of a batch, in the batch's order."""

    id: str | None
    result: Result
    reason: str | None = None


Key = tuple[str, str, str]


def take(
    database: Database, key_id: str, batch: Sequence[OutsideEvent | Rejection]
) -> list[Answer]:
    """Store a batch in one transaction; an answer for each event, in order."""
    first: dict[Key, OutsideEvent] = {}
    for event in batch:
        if isinstance(event, OutsideEvent):
            first.setdefault((event.tenant_id, event.source, event.id), event)
    partitions.ensure(database, (event.event_time_us for event in first.values()))
    known: dict[Key, str] = {}
    while len(known) < len(first):
        try:
            with transaction(database) as connection:
                _store(connection, key_id, [first[key] for key in first if key not in known])
            break
        except IntegrityError:
            before = len(known)
            with snapshot(database) as connection:
                known = _hashes(connection, first)
            if len(known) == before:
                raise  # it was not an id that is there already
    if not known and len(first) == len(batch):  # as nearly always
        return [Answer(event.id, Result.ACCEPTED) for event in batch]
    return list(_answers(batch, first, known))


def _answers(
    batch: Iterable[OutsideEvent | Rejection],
    first: dict[Key, OutsideEvent],
    known: dict[Key, str],
) -> Iterator[Answer]:
    for event in batch:
        if isinstance(event, Rejection):
            yield Answer(event.id, Result.REJECTED, event.reason)
            continue
        key = _key(event)
        if key not in known and first[key] is event:
            yield Answer(event.id, Result.ACCEPTED)
        elif known.get(key, first[key].body_sha256) == event.body_sha256:
            yield Answer(event.id, Result.DUPLICATE)
        else:
            yield Answer(event.id, Result.CONFLICT, "this id was used before, for another body")


def _store(connection: Connection, key_id: str, events: Sequence[OutsideEvent]) -> None:
    """Insert events; raises IntegrityError where one's id is there already."""
    written = {"now": clock.now_us(), "key_id": key_id}
    if connection.dialect.name == "postgresql":
        _copy(connection, events)
        connection.exec_driver_sql(_POSTGRESQL, written)
        return
    connection.exec_driver_sql(_STAGING)
    connection.exec_driver_sql("DELETE FROM staged_events")
    connection.exec_driver_sql(
        "INSERT INTO staged_events VALUES (?, ?, ?, ?, ?, ?)",
        [msgspec.structs.astuple(event) for event in events],
    )
    for statement in _SQLITE:
        connection.exec_driver_sql(statement, written)


def _copy(connection: Connection, events: Iterable[OutsideEvent]) -> None:
    cursor: Any = connection.connection.cursor()
    try:
        cursor.execute(f"{_STAGING} ON COMMIT DELETE ROWS")
        with cursor.copy(_COPY) as copy:
            for event in events:
                copy.write_row(msgspec.structs.astuple(event))
    finally:
        cursor.close()


def _hashes(connection: Connection, keys: Iterable[Key]) -> dict[Key, str]:
    """The bodies' hashes of those ids that are stored."""
    wanted = list(keys)
    found: dict[Key, str] = {}
    columns = (event_ids.c.tenant_id, event_ids.c.source, event_ids.c.id)
    for start in range(0, len(wanted), CHUNK):
        rows = connection.execute(
            select(*columns, event_ids.c.body_sha256).where(
                tuple_(*columns).in_(wanted[start : start + CHUNK])
            )
        )
        found |= {(row[0], row[1], row[2]): row[3] for row in rows}
    return found


def _key(event: OutsideEvent) -> Key:
    return event.tenant_id, event.source, event.id
