"""Storing a batch of outside events, each once, and answering for every one of them.

Ids, detail and the queue of what waits to be rated are written in one transaction: there is no
moment at which an id is taken and its usage is not there. PostgreSQL takes the batch by COPY into a
staging table, then inserts what is new; SQLite has one writer, which looks where inserting fails.
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
_COLUMNS = ("tenant_id", "source", "id", "body_sha256", "event_time_us", "key_id", "body")
_STAGING = (
    "CREATE TEMP TABLE IF NOT EXISTS staged_events (tenant_id text, source text, id text,"
    " body_sha256 text, event_time_us bigint, key_id text, body text) ON COMMIT DELETE ROWS"
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
    SELECT tenant_id, source, id, event_time_us, %(now)s, key_id, body
    FROM staged_events JOIN fresh USING (tenant_id, source, id)
), waiting AS (
    INSERT INTO outside_waiting (tenant_id, source, id, event_time_us, ingested_at_us)
    SELECT tenant_id, source, id, event_time_us, %(now)s
    FROM staged_events JOIN fresh USING (tenant_id, source, id)
)
SELECT tenant_id, source, id FROM fresh
"""


class Result(StrEnum):
    """What became of an event."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # stored before with the same body: nothing to do
    CONFLICT = "conflict"  # stored before with another body: the first one stays
    REJECTED = "rejected"


class Answer(msgspec.Struct, frozen=True):
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
            first.setdefault(_key(event), event)
    partitions.ensure(database, (event.event_time_us for event in first.values()))
    with transaction(database) as connection:
        fresh = _store(connection, key_id, list(first.values())) if first else set()
        known = _hashes(connection, first.keys() - fresh)
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


def _store(connection: Connection, key_id: str, events: Sequence[OutsideEvent]) -> set[Key]:
    """Insert what is new; which ids that were."""
    now = clock.now_us()
    if connection.dialect.name == "postgresql":
        return _store_by_copy(connection, key_id, events, now)
    try:
        with connection.begin_nested():
            _insert(connection, key_id, events, now)
    except IntegrityError:
        # Some are there already; with one writer, looking first is enough.
        taken = _hashes(connection, [_key(event) for event in events])
        events = [event for event in events if _key(event) not in taken]
        _insert(connection, key_id, events, now)
    return {_key(event) for event in events}


def _insert(connection: Connection, key_id: str, events: Sequence[OutsideEvent], now: int) -> None:
    if not events:
        return
    connection.exec_driver_sql(
        "INSERT INTO event_ids (tenant_id, source, id, body_sha256, ingested_at_us)"
        " VALUES (?, ?, ?, ?, ?)",
        [(each.tenant_id, each.source, each.id, each.body_sha256, now) for each in events],
    )
    connection.exec_driver_sql(
        "INSERT INTO outside_usage"
        " (tenant_id, source, id, event_time_us, ingested_at_us, key_id, body)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (each.tenant_id, each.source, each.id, each.event_time_us, now, key_id, each.body)
            for each in events
        ],
    )
    connection.exec_driver_sql(
        "INSERT INTO outside_waiting (tenant_id, source, id, event_time_us, ingested_at_us)"
        " VALUES (?, ?, ?, ?, ?)",
        [(each.tenant_id, each.source, each.id, each.event_time_us, now) for each in events],
    )


def _store_by_copy(
    connection: Connection, key_id: str, events: Sequence[OutsideEvent], now: int
) -> set[Key]:
    cursor: Any = connection.connection.cursor()
    try:
        cursor.execute(_STAGING)
        with cursor.copy(_COPY) as copy:
            for event in events:
                copy.write_row(
                    (
                        event.tenant_id,
                        event.source,
                        event.id,
                        event.body_sha256,
                        event.event_time_us,
                        key_id,
                        event.body,
                    )
                )
        cursor.execute(_INSERT_NEW, {"now": now})
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
