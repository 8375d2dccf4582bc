"""Storing a batch of outside events, each once, and answering for every one of them.

Ids, detail and the queue of what waits to be rated are written in one transaction: there is no
moment at which an id is taken and its usage is not there. The batch goes once into a temporary
table, by COPY on PostgreSQL, and from there into the three: Python touches each event once.
PostgreSQL inserts what is new; SQLite has one writer, which looks only where inserting fails.
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
from metering.database import transaction
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
# In one order everywhere, so that batches that share ids never wait for each other in a circle.
_INSERT_NEW = """
WITH fresh AS (
    INSERT INTO event_ids (tenant_id, source, id, body_sha256, ingested_at_us)
    SELECT tenant_id, source, id, body_sha256, %(now)s FROM staged_events
    ORDER BY tenant_id, source, id
    ON CONFLICT DO NOTHING RETURNING tenant_id, source, id
), detail AS (
    INSERT INTO outside_usage
        (tenant_id, source, id, event_time_us, ingested_at_us, key_id, body)
    SELECT tenant_id, source, id, event_time_us, %(now)s, %(key_id)s, body
    FROM staged_events JOIN fresh USING (tenant_id, source, id)
), waiting AS (
    INSERT INTO outside_waiting (tenant_id, source, id, event_time_us, ingested_at_us)
    SELECT tenant_id, source, id, event_time_us, %(now)s
    FROM staged_events JOIN fresh USING (tenant_id, source, id)
)
SELECT tenant_id, source, id FROM fresh
"""
_INSERT_ALL = (
    "INSERT INTO event_ids (tenant_id, source, id, body_sha256, ingested_at_us)"
    " SELECT tenant_id, source, id, body_sha256, :now FROM staged_events",
    "INSERT INTO outside_usage (tenant_id, source, id, event_time_us, ingested_at_us, key_id, body)"
    " SELECT tenant_id, source, id, event_time_us, :now, :key_id, body FROM staged_events",
    "INSERT INTO outside_waiting (tenant_id, source, id, event_time_us, ingested_at_us)"
    " SELECT tenant_id, source, id, event_time_us, :now FROM staged_events",
)


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
    with transaction(database) as connection:
        fresh = _store(connection, key_id, first) if first else set()
        known = _hashes(connection, first.keys() - fresh) if len(fresh) < len(first) else {}
    if len(fresh) == len(batch):  # as nearly always
        return [Answer(event.id, Result.ACCEPTED) for event in batch]
    return list(_answers(batch, first, fresh, known))


def _answers(
    batch: Iterable[OutsideEvent | Rejection],
    first: dict[Key, OutsideEvent],
    fresh: set[Key],
    known: dict[Key, str],
) -> Iterator[Answer]:
    for event in batch:
        if isinstance(event, Rejection):
            yield Answer(event.id, Result.REJECTED, event.reason)
            continue
        key = _key(event)
        if key in fresh and first[key] is event:
            yield Answer(event.id, Result.ACCEPTED)
            continue
        stored = first[key].body_sha256 if key in fresh else known[key]
        if stored == event.body_sha256:
            yield Answer(event.id, Result.DUPLICATE)
        else:
            yield Answer(event.id, Result.CONFLICT, "this id was used before, for another body")


def _store(connection: Connection, key_id: str, events: dict[Key, OutsideEvent]) -> set[Key]:
    """Insert what is new; which ids that were."""
    written = {"now": clock.now_us(), "key_id": key_id}
    if connection.dialect.name == "postgresql":
        return _store_by_copy(connection, list(events.values()), written)
    connection.exec_driver_sql(_STAGING)
    try:
        with connection.begin_nested():
            _store_all(connection, list(events.values()), written)
    except IntegrityError:
        # Some are there already; with one writer, looking first is enough.
        taken = _hashes(connection, events)
        events = {key: event for key, event in events.items() if key not in taken}
        _store_all(connection, list(events.values()), written)
    return set(events)


def _store_all(
    connection: Connection, events: Sequence[OutsideEvent], written: dict[str, Any]
) -> None:
    if not events:
        return
    connection.exec_driver_sql("DELETE FROM staged_events")
    connection.exec_driver_sql(
        "INSERT INTO staged_events VALUES (?, ?, ?, ?, ?, ?)",
        [msgspec.structs.astuple(event) for event in events],
    )
    for statement in _INSERT_ALL:
        connection.exec_driver_sql(statement, written)


def _store_by_copy(
    connection: Connection, events: Sequence[OutsideEvent], written: dict[str, Any]
) -> set[Key]:
    cursor: Any = connection.connection.cursor()
    try:
        cursor.execute(f"{_STAGING} ON COMMIT DELETE ROWS")
        with cursor.copy(_COPY) as copy:
            for event in events:
                copy.write_row(msgspec.structs.astuple(event))
        cursor.execute(_INSERT_NEW, written)
        return {(row[0], row[1], row[2]) for row in cursor.fetchall()}
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
