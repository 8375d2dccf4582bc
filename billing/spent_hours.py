"""What the requests of an hour carry, and what they came to: for `spending`, off their own path.

Counted with the hour's charges (`charged_hours`), and to be read only while those are.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, literal, select

from billing.charged_tables import charged_hours, hour_spending
from billing.tables import receipts
from metering.tables import request_summaries, requests

CARRIED = (
    requests.c.key_id,
    requests.c.project_id,
    requests.c.end_user,
    requests.c.model,
    requests.c.tags,
    receipts.c.currency,
)
NAMES = [column.name for column in CARRIED]
FIGURES = ["requests", "input_tokens", "output_tokens", "charged_nano"]


def of_requests(tenant_id: str, start_us: int, end_us: int) -> Select[Any]:
    """NAMES and FIGURES of requests that ended in [start, end); alike ones in one row."""
    summary = request_summaries.c
    return (
        select(
            *CARRIED,
            func.count().label("requests"),
            func.sum(summary.input_tokens).label("input_tokens"),
            func.sum(summary.output_tokens).label("output_tokens"),
            func.sum(receipts.c.total_nano).label("charged_nano"),
        )
        .select_from(request_summaries)
        .join(requests, requests.c.id == summary.request_id)
        .join(receipts, receipts.c.request_id == summary.request_id)
        .where(
            summary.tenant_id == tenant_id,
            summary.ended_at_us >= start_us,
            summary.ended_at_us < end_us,
        )
        .group_by(*CARRIED)
    )


def of_hours(tenant_id: str, first_us: int, last_us: int) -> Select[Any]:
    """The same of the hours that begin in [first, last) and are counted."""
    hour = hour_spending.c
    return (
        select(*(hour[name] for name in NAMES + FIGURES))
        .join(
            charged_hours,
            (charged_hours.c.tenant_id == hour.tenant_id)
            & (charged_hours.c.start_us == hour.start_us),
        )
        .where(
            hour.tenant_id == tenant_id,
            hour.start_us >= first_us,
            hour.start_us < last_us,
            charged_hours.c.is_counted.is_(True),
        )
    )


def store(connection: Connection, tenant_id: str, start_us: int, end_us: int) -> None:
    """Put what the requests of an hour carry in place of what was stored of it."""
    forget(connection, tenant_id, start_us)
    found = of_requests(tenant_id, start_us, end_us).subquery()
    numbered = select(
        literal(tenant_id),
        literal(start_us, hour_spending.c.start_us.type),
        func.row_number().over(order_by=[found.c.key_id, found.c.model]),
        *(found.c[name] for name in NAMES + FIGURES),
    )
    columns = ["tenant_id", "start_us", "place", *NAMES, *FIGURES]
    connection.execute(insert(hour_spending).from_select(columns, numbered))


def forget(connection: Connection, tenant_id: str, start_us: int) -> None:
    """Take away what is stored of an hour."""
    connection.execute(
        delete(hour_spending).where(
            hour_spending.c.tenant_id == tenant_id, hour_spending.c.start_us == start_us
        )
    )
