"""Which periods of a tenant were closed, and into which of them something came late.

From the moment a period's row exists, whoever books something of its time counts it as late, in
the same transaction and under the tenant's lock. A late count asks for another look, no more: the
look compares all that the period holds with all that was billed of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, Row, bindparam, select, update

from billing import periods
from billing.invoices.tables import billing_periods
from billing.periods import Period
from billing.rows import insert_once
from metering.prepared import Prepared


@dataclass(frozen=True, slots=True)
class LatePeriod:
    """A closed period that has to be looked at again; `late` is the count seen."""

    period: Period
    late: int


def span(connection: Connection, tenant_id: str, label: str, time_zone: str) -> Period:
    """The period of this label, meeting its closed neighbours without gap or overlap.

    A closed period stays as it was. Where the tenant has moved to another time zone since, the
    next one begins where the last one ended.
    """
    neighbours = {
        row.label: row
        for row in connection.execute(
            select(billing_periods).where(
                billing_periods.c.tenant_id == tenant_id,
                billing_periods.c.label.in_(
                    [periods.preceding(label), label, periods.following(label)]
                ),
            )
        )
    }
    if (closed := neighbours.get(label)) is not None:
        return _period(closed)
    wanted = periods.month(label, time_zone)
    before = neighbours.get(periods.preceding(label))
    after = neighbours.get(periods.following(label))
    return Period(
        label,
        wanted.start_us if before is None else before.end_us,
        wanted.end_us if after is None else after.start_us,
        time_zone,
    )


def begin(connection: Connection, tenant_id: str, period: Period, now_us: int) -> None:
    """From now on, what is booked into this period is late. Beginning again changes nothing."""
    insert_once(
        connection,
        billing_periods,
        {
            "tenant_id": tenant_id,
            "label": period.label,
            "start_us": period.start_us,
            "end_us": period.end_us,
            "time_zone": period.time_zone,
            "late": 0,
            "late_billed": 0,
            "closing_at_us": now_us,
        },
    )


_NOTE = Prepared(
    update(billing_periods)
    .where(
        billing_periods.c.tenant_id == bindparam("of_tenant"),
        billing_periods.c.start_us <= bindparam("at_us"),
        billing_periods.c.end_us > bindparam("at_us"),
    )
    .values(late=billing_periods.c.late + 1)
)


def note(connection: Connection, tenant_id: str, at_us: int) -> None:
    """Count something booked at this event time, if its period was closed; else change nothing."""
    _NOTE.run(connection, {"of_tenant": tenant_id, "at_us": at_us})


def is_closed(connection: Connection, tenant_id: str, label: str) -> bool:
    """Whether the period's invoice was issued, or found not to be needed."""
    closed_at_us = connection.scalar(
        select(billing_periods.c.closed_at_us).where(
            billing_periods.c.tenant_id == tenant_id, billing_periods.c.label == label
        )
    )
    return closed_at_us is not None


def affected(connection: Connection, tenant_id: str, from_us: int) -> list[tuple[Period, bool]]:
    """The periods that end after a moment and whose closing has begun, and whether it is done."""
    rows = connection.execute(
        select(billing_periods)
        .where(billing_periods.c.tenant_id == tenant_id, billing_periods.c.end_us > from_us)
        .order_by(billing_periods.c.label)
    )
    return [(_period(row), row.closed_at_us is not None) for row in rows]


def late_periods(connection: Connection, tenant_id: str) -> list[LatePeriod]:
    """The closed periods into which something came that was not looked at, oldest first."""
    rows = connection.execute(
        select(billing_periods)
        .where(
            billing_periods.c.tenant_id == tenant_id,
            billing_periods.c.closed_at_us.is_not(None),
            billing_periods.c.late > billing_periods.c.late_billed,
        )
        .order_by(billing_periods.c.label)
    )
    return [LatePeriod(_period(row), row.late) for row in rows]


def late_count(connection: Connection, tenant_id: str, label: str) -> int:
    """How often something came late into a period; 0 where it was never closed."""
    count = connection.scalar(
        select(billing_periods.c.late).where(
            billing_periods.c.tenant_id == tenant_id, billing_periods.c.label == label
        )
    )
    return int(count or 0)


_CHANGE = Prepared(
    update(billing_periods).where(
        billing_periods.c.tenant_id == bindparam("of_tenant"),
        billing_periods.c.label == bindparam("of_label"),
    )
)


def looked_at(connection: Connection, tenant_id: str, seen: Iterable[tuple[str, int]]) -> None:
    """Note up to which late count periods were billed."""
    for label, late in seen:
        _CHANGE.run(connection, {"of_tenant": tenant_id, "of_label": label, "late_billed": late})


def close(connection: Connection, tenant_id: str, label: str, now_us: int) -> None:
    """Mark a period closed: its invoice stands, or there was nothing to bill."""
    _CHANGE.run(connection, {"of_tenant": tenant_id, "of_label": label, "closed_at_us": now_us})


def reopen(connection: Connection, tenant_id: str, label: str) -> None:
    """Let a period be closed again, after its invoice was voided."""
    _CHANGE.run(connection, {"of_tenant": tenant_id, "of_label": label, "closed_at_us": None})


def look_again(connection: Connection, tenant_id: str, label: str) -> None:
    """Ask for another look at a closed period, whatever came."""
    connection.execute(
        update(billing_periods)
        .where(billing_periods.c.tenant_id == tenant_id, billing_periods.c.label == label)
        .values(late=billing_periods.c.late + 1)
    )


def _period(row: Row[tuple[object, ...]]) -> Period:
    return Period(row.label, row.start_us, row.end_us, row.time_zone)
