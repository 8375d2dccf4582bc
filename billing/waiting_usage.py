"""Reported usage that waits for its price, by the months that it belongs to. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from sqlalchemy import Connection, func, select

from billing.differences import Difference
from billing.period_totals import Calendar
from billing.periods import Period
from metering import clock
from metering.ingest_tables import outside_waiting

GRACE_US = 86_400 * 10**6  # usage is rated within seconds; what waits for a day waits for somebody


def in_period(connection: Connection, tenant_id: str, period: Period) -> int:
    """How many of a tenant's accepted events of a period are not rated."""
    column = outside_waiting.c
    count = select(func.count()).where(
        column.tenant_id == tenant_id,
        column.event_time_us >= period.start_us,
        column.event_time_us < period.end_us,
    )
    return int(connection.scalar(count) or 0)


def check(
    connection: Connection, tenant_id: str | None = None, label: str | None = None
) -> Iterator[Difference]:
    """Every month of a tenant with usage that was accepted over a day ago and is not rated."""
    column = outside_waiting.c
    query = select(column.tenant_id, column.event_time_us).where(
        column.ingested_at_us < clock.now_us() - GRACE_US
    )
    if tenant_id is not None:
        query = query.where(column.tenant_id == tenant_id)
    calendar = Calendar(connection)
    found = Counter(
        (owner, calendar.label(owner, at_us)) for owner, at_us in connection.execute(query)
    )
    for (owner, month), count in sorted(found.items()):
        if label in (None, month):
            yield Difference("reported usage is rated", f"{owner} {month}", "0 waiting", str(count))
