"""What is delivered to whom, when it is tried again, and how it ended.

A notice becomes one delivery for each endpoint that wants it. A delivery is claimed by putting off
its next attempt, so that no two gateways send it at once and one that dies loses nothing; it is
sent at least once, always under the same id.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, func, select, update

from api.errors import NotFound
from api.webhook_tables import webhook_deliveries, webhook_endpoints
from api.webhooks import endpoints
from api.webhooks.endpoints import Endpoint
from billing.credit_tables import notices
from billing.receipt_documents import iso
from billing.rows import insert_once
from metering import clock

# After how many seconds an attempt follows the one before, as Standard Webhooks recommends.
SCHEDULE_S = (0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, 86_400)
JITTER = 0.1
LEASE_S = 60
PLAN_MAX = 200
HEADS_MAX = 1000
GONE = 410


@dataclass(frozen=True, slots=True)
class Head:
    """The delivery that an endpoint is to be sent next."""

    seq: int
    endpoint_id: str
    tenant_id: str


@dataclass(frozen=True, slots=True)
class Due:
    """A delivery to attempt now. `body` is the same in every attempt."""

    seq: int
    notice_id: str
    attempts: int  # before this one
    endpoint: Endpoint
    body: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """A delivery in a list."""

    seq: int
    notice_id: str
    type: str
    endpoint_id: str
    state: str
    attempts: int
    next_at_us: int
    last_status: int | None
    last_error: str | None
    delivered_at_us: int | None


def is_unplanned(connection: Connection) -> bool:
    """Whether there is a notice to plan."""
    waiting = select(notices.c.id).where(notices.c.dispatched_at_us.is_(None))
    return connection.scalar(waiting.limit(1)) is not None


def plan(connection: Connection) -> int:
    """Make the deliveries of notices that have none yet; how many notices that were."""
    rows = connection.execute(
        select(notices)
        .where(notices.c.dispatched_at_us.is_(None))
        .order_by(notices.c.created_at_us, notices.c.id)
        .limit(PLAN_MAX)
        .with_for_update(skip_locked=True)
    ).all()
    now = clock.now_us()
    for row in rows:
        for endpoint in endpoints.listing(connection, row.tenant_id):
            if endpoint.wants(row.type):
                insert_once(
                    connection,
                    webhook_deliveries,
                    {
                        "notice_id": row.id,
                        "endpoint_id": endpoint.id,
                        "state": "waiting",
                        "attempts": 0,
                        "next_at_us": now,
                    },
                )
        connection.execute(
            update(notices).where(notices.c.id == row.id).values(dispatched_at_us=now)
        )
    return len(rows)


def heads(connection: Connection) -> list[Head]:
    """The oldest delivery that is due of each endpoint, the longest waiting ones first."""
    first = func.min(webhook_deliveries.c.seq).label("seq")
    rows = connection.execute(
        select(first, webhook_endpoints.c.id, webhook_endpoints.c.tenant_id)
        .join(webhook_endpoints, webhook_endpoints.c.id == webhook_deliveries.c.endpoint_id)
        .where(*_due(clock.now_us()))
        .group_by(webhook_endpoints.c.id, webhook_endpoints.c.tenant_id)
        .order_by(first)
        .limit(HEADS_MAX)
    )
    return [Head(*row) for row in rows]


def claim(connection: Connection, chosen: Sequence[int]) -> list[Due]:
    """Take deliveries that are still due, for the length of a lease."""
    now = clock.now_us()
    rows = connection.execute(
        select(
            webhook_deliveries.c.seq,
            webhook_deliveries.c.attempts,
            webhook_deliveries.c.endpoint_id,
            notices,
        )
        .join(notices, notices.c.id == webhook_deliveries.c.notice_id)
        .where(webhook_deliveries.c.seq.in_(chosen), *_due(now))
        .order_by(webhook_deliveries.c.seq)
        .with_for_update(skip_locked=True, of=webhook_deliveries)
    ).all()
    due = []
    for row in rows:
        endpoint = endpoints.require(connection, row.tenant_id, row.endpoint_id)
        if endpoint.disabled_at_us is not None:
            connection.execute(
                update(webhook_deliveries)
                .where(webhook_deliveries.c.endpoint_id == endpoint.id)
                .where(webhook_deliveries.c.state == "waiting")
                .values(state="failed", last_error="the endpoint is disabled")
            )
            continue
        _end(connection, row.seq, next_at_us=now + LEASE_S * 10**6)
        data = msgspec.json.decode(row.data)
        message = {"type": row.type, "timestamp": iso(row.created_at_us), "data": data}
        body = msgspec.json.encode(message).decode()
        due.append(Due(row.seq, row.id, row.attempts, endpoint, body))
    return due


def record(connection: Connection, due: Due, status: int | None, error: str | None) -> None:
    """Note how an attempt ended, and when the next one is. A 410 disables the endpoint."""
    now = clock.now_us()
    attempts = due.attempts + 1
    last: dict[str, Any] = {
        "attempts": attempts,
        "last_status": status,
        "last_error": error and error[:200],
    }
    if status is not None and 200 <= status < 300:
        _end(connection, due.seq, state="delivered", delivered_at_us=now, **last)
    elif status == GONE:
        endpoints.disable(connection, due.endpoint.id, "it answered 410")
        _end(connection, due.seq, state="failed", **last)
    elif attempts >= len(SCHEDULE_S):
        _end(connection, due.seq, state="failed", **last)
    else:
        wait_s = SCHEDULE_S[attempts] * (1 + JITTER * secrets.randbelow(1000) / 1000)
        _end(connection, due.seq, next_at_us=now + int(wait_s * 10**6), **last)


def replay(connection: Connection, tenant_id: str, seq: int) -> Delivery:
    """Send a delivery again, whatever became of it, under the same id. Raises NotFound."""
    found = one(connection, tenant_id, seq)
    _end(
        connection,
        seq,
        state="waiting",
        attempts=0,
        next_at_us=clock.now_us(),
        delivered_at_us=None,
    )
    return one(connection, tenant_id, found.seq)


def one(connection: Connection, tenant_id: str, seq: int) -> Delivery:
    """A tenant's delivery. Raises NotFound."""
    row = connection.execute(
        _listed(tenant_id).where(webhook_deliveries.c.seq == seq)
    ).one_or_none()
    if row is None:
        raise NotFound(f"no delivery {seq}")
    return Delivery(*row)


def listing(
    connection: Connection, tenant_id: str, *, limit: int, before: int | None = None
) -> list[Delivery]:
    """A tenant's deliveries, newest first. `before` is an exclusive `seq`."""
    query = _listed(tenant_id).order_by(webhook_deliveries.c.seq.desc()).limit(limit)
    if before is not None:
        query = query.where(webhook_deliveries.c.seq < before)
    return [Delivery(*row) for row in connection.execute(query)]


def _listed(tenant_id: str) -> Select[*tuple[Any, ...]]:
    columns = webhook_deliveries.c
    return (
        select(
            columns.seq,
            columns.notice_id,
            notices.c.type,
            columns.endpoint_id,
            columns.state,
            columns.attempts,
            columns.next_at_us,
            columns.last_status,
            columns.last_error,
            columns.delivered_at_us,
        )
        .join(notices, notices.c.id == columns.notice_id)
        .join(webhook_endpoints, webhook_endpoints.c.id == columns.endpoint_id)
        .where(webhook_endpoints.c.tenant_id == tenant_id)
    )


def _due(now_us: int) -> tuple[ColumnElement[bool], ...]:
    return webhook_deliveries.c.state == "waiting", webhook_deliveries.c.next_at_us <= now_us


def _end(connection: Connection, seq: int, **values: object) -> None:
    connection.execute(
        update(webhook_deliveries).where(webhook_deliveries.c.seq == seq).values(**values)
    )
