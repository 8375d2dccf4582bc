"""The durable log of usage events: a replay is a no-op, a contradiction an error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Insert, select
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert

from metering import bodies
from metering.bodies import Fact, UsageEvent
from metering.clock import now_us
from metering.errors import EventConflict
from metering.events import EventKind
from metering.prepared import Prepared
from metering.tables import usage_events


def append(connection: Connection, events: Sequence[UsageEvent]) -> None:
    """Append events within the caller's transaction; those already there are left alone.

    Raises EventConflict when an id is taken by another body. Which events of the batch were
    inserted by then is for the caller to roll back.
    """
    if not events:
        return
    ingested_at_us = now_us()
    rows = [
        {
            "tenant_id": event.tenant_id,
            "source": event.source,
            "id": event.id,
            "kind": event.kind.value,
            "request_id": event.request_id,
            "index": event.index,
            "body": event.body,
            "body_sha256": event.body_sha256,
            "event_time_us": event.event_time_us,
            "ingested_at_us": ingested_at_us,
        }
        for event in events
    ]
    inserted = _INSERT.run_each(connection, rows)
    if inserted != len(rows):
        _check_equal(connection, events)


def of_request(connection: Connection, request_id: str) -> list[Fact]:
    """Everything stated about a request, in the order in which it was stated."""
    rows = connection.execute(
        select(usage_events.c.kind, usage_events.c.body)
        .where(usage_events.c.request_id == request_id)
        .order_by(usage_events.c.seq)
    )
    return [fact for kind, body in rows for fact in bodies.read(EventKind(kind), body)]


def _insert_ignoring(dialect: str) -> Insert:
    keys: dict[str, Any] = {"index_elements": ["tenant_id", "source", "id"]}
    if dialect == "postgresql":
        return postgresql_insert(usage_events).on_conflict_do_nothing(**keys)
    return sqlite_insert(usage_events).on_conflict_do_nothing(**keys)


_INSERT = Prepared(_insert_ignoring)


def _check_equal(connection: Connection, events: Sequence[UsageEvent]) -> None:
    stored = {
        (row.tenant_id, row.source, row.id): row.body_sha256
        for row in connection.execute(
            select(
                usage_events.c.tenant_id,
                usage_events.c.source,
                usage_events.c.id,
                usage_events.c.body_sha256,
            ).where(usage_events.c.id.in_([event.id for event in events]))
        )
    }
    for event in events:
        if stored.get((event.tenant_id, event.source, event.id)) != event.body_sha256:
            raise EventConflict(event.id)
