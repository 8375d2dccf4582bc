"""Usage by minute, hour and day: projections of request summaries, which can be made anew.

Whoever ends a request marks its minute in the same transaction; a roll-up takes the marks of a
tenant that it can see, counts those minutes again, and then the hours and days that hold them.
Counting again instead of adding makes a late event, a replay and a rebuild the same thing. Hours
and days are UTC's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, delete, func, insert, select, text

from metering.ingest_tables import rollup_marks, usage_rollups
from metering.prepared import Prepared
from metering.tables import request_summaries, requests

MINUTE_US = 60 * 10**6
WIDTHS_US = {"minute": MINUTE_US, "hour": 60 * MINUTE_US, "day": 1440 * MINUTE_US}
ADVISORY_LOCK = 0x726F6C6C  # "roll": any constant nobody else takes
MARKS_MAX = 10_000  # taken in one transaction,
MINUTES_MAX = 500  # of no more minutes: it has the only writer's lock on SQLite


class RollupRow(msgspec.Struct, frozen=True):
    """What a tenant's requests of one model and energy class used in one stretch."""

    tenant_id: str
    width: str
    start_us: int
    model: str
    energy_class: str
    requests: int
    input_tokens: int
    output_tokens: int
    energy_uj: int | None


_MARK = Prepared(insert(rollup_marks))


def mark(connection: Connection, tenant_id: str, ended_at_us: int) -> None:
    """Note that a minute has changed, in the transaction that changed it."""
    _MARK.run(
        connection, {"tenant_id": tenant_id, "minute_us": ended_at_us - ended_at_us % MINUTE_US}
    )


def next_marked(connection: Connection, after: str = "") -> str | None:
    """The first tenant after another, by their ids, that has a marked minute; null at the end."""
    tenant = rollup_marks.c.tenant_id
    return connection.scalar(select(tenant).where(tenant > after).order_by(tenant).limit(1))


def refresh(connection: Connection, tenant_id: str) -> int:
    """Count marked minutes of a tenant anew, and their hours and days; how many minutes there were.

    Bounded: there may be more. One at a time, in a transaction of its own.
    """
    _lock(connection)
    changed: set[int] = set()
    seqs = []
    for seq, minute_us in connection.execute(
        select(rollup_marks.c.seq, rollup_marks.c.minute_us)
        .where(rollup_marks.c.tenant_id == tenant_id)
        .order_by(rollup_marks.c.seq)
        .limit(MARKS_MAX)
    ).all():
        if len(changed) == MINUTES_MAX and minute_us not in changed:
            break
        changed.add(minute_us)
        seqs.append(seq)
    # Each was visible, so what it speaks of is; one that comes to be meanwhile stays.
    for start in range(0, len(seqs), 500):
        connection.execute(
            delete(rollup_marks).where(rollup_marks.c.seq.in_(seqs[start : start + 500]))
        )
    for start_us, end_us in _stretches(changed, MINUTE_US):
        _count(connection, tenant_id, start_us, end_us)
    for width in ("hour", "day"):
        for start_us, end_us in _stretches(changed, WIDTHS_US[width]):
            _add_up(connection, tenant_id, width, start_us, end_us)
    return len(changed)


def rebuild(connection: Connection, tenant_id: str) -> int:
    """Make every rollup of a tenant anew from its summaries; how many rows there are."""
    _lock(connection)
    connection.execute(delete(usage_rollups).where(usage_rollups.c.tenant_id == tenant_id))
    connection.execute(delete(rollup_marks).where(rollup_marks.c.tenant_id == tenant_id))
    for width in WIDTHS_US:
        connection.execute(insert(usage_rollups).from_select(_NAMES, _sums(width, tenant_id)))
    kept = select(func.count()).where(usage_rollups.c.tenant_id == tenant_id)
    return int(connection.scalar(kept) or 0)


def read(
    connection: Connection, tenant_id: str | None, width: str, start_us: int, end_us: int
) -> list[RollupRow]:
    """Rollups that begin in [start, end), oldest first; marked minutes may still be missing."""
    query = select(usage_rollups).where(
        usage_rollups.c.width == width,
        usage_rollups.c.start_us >= start_us,
        usage_rollups.c.start_us < end_us,
    )
    if tenant_id is not None:
        query = query.where(usage_rollups.c.tenant_id == tenant_id)
    ordered = query.order_by(usage_rollups.c.start_us, usage_rollups.c.tenant_id)
    return [RollupRow(**row) for row in connection.execute(ordered).mappings()]


def waiting(connection: Connection) -> int:
    """How many marks wait for the next roll-up."""
    return int(connection.scalar(select(func.count()).select_from(rollup_marks)) or 0)


_NAMES = [column.name for column in usage_rollups.c]


def _sums(width: str, tenant_id: str) -> Select[*tuple[Any, ...]]:
    size = WIDTHS_US[width]
    summary = request_summaries.c
    start = (summary.ended_at_us // size * size).label("bucket_us")
    return (
        select(
            summary.tenant_id,
            text(f"'{width}' AS width"),
            start,
            requests.c.model,
            summary.energy_class,
            func.count(),
            func.sum(summary.input_tokens),
            func.sum(summary.output_tokens),
            func.sum(summary.energy_uj),
        )
        .join(requests, requests.c.id == summary.request_id)
        .where(summary.tenant_id == tenant_id)
        .group_by(summary.tenant_id, "bucket_us", requests.c.model, summary.energy_class)
    )


def _count(connection: Connection, tenant_id: str, start_us: int, end_us: int) -> None:
    _clear(connection, tenant_id, "minute", start_us, end_us)
    ended = request_summaries.c.ended_at_us
    connection.execute(
        insert(usage_rollups).from_select(
            _NAMES, _sums("minute", tenant_id).where(ended >= start_us, ended < end_us)
        )
    )


def _add_up(connection: Connection, tenant_id: str, width: str, start_us: int, end_us: int) -> None:
    """Add a stretch of minutes up to hours or days."""
    _clear(connection, tenant_id, width, start_us, end_us)
    size = WIDTHS_US[width]
    column = usage_rollups.c
    start = (column.start_us // size * size).label("bucket_us")
    connection.execute(
        insert(usage_rollups).from_select(
            _NAMES,
            select(
                column.tenant_id,
                text(f"'{width}' AS width"),
                start,
                column.model,
                column.energy_class,
                func.sum(column.requests),
                func.sum(column.input_tokens),
                func.sum(column.output_tokens),
                func.sum(column.energy_uj),
            )
            .where(
                column.tenant_id == tenant_id,
                column.width == "minute",
                column.start_us >= start_us,
                column.start_us < end_us,
            )
            .group_by(column.tenant_id, "bucket_us", column.model, column.energy_class),
        )
    )


def _clear(connection: Connection, tenant_id: str, width: str, start_us: int, end_us: int) -> None:
    connection.execute(
        delete(usage_rollups).where(
            usage_rollups.c.tenant_id == tenant_id,
            usage_rollups.c.width == width,
            usage_rollups.c.start_us >= start_us,
            usage_rollups.c.start_us < end_us,
        )
    )


def _stretches(moments: Iterable[int], size: int) -> list[tuple[int, int]]:
    """The buckets that hold these moments, neighbours joined: [start, end)."""
    joined: list[tuple[int, int]] = []
    for start in sorted({at // size * size for at in moments}):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], start + size)
        else:
            joined.append((start, start + size))
    return joined


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})
