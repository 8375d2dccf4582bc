"""`/balance`, `/charges`, `/receipts` and `/receipt-keys`: what was paid, and the proof of it."""

from __future__ import annotations

from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from litestar import get
from litestar.di import NamedDependency
from sqlalchemy import Engine as Database

from api import cursors, tenants
from api.auth import Principal, Scope, requires, tenant_in_scope, visible_tenant
from api.error_reports import documented
from api.errors import Forbidden, InvalidCursor, InvalidParameter, NotFound, Unauthenticated
from api.schemas import CursorQuery, LimitQuery, PathId, TenantQuery, to_time
from api.usage import ranges
from api.usage.ranges import EndQuery, StartQuery
from api.usage.schemas import BalanceView, ChargesView, ChargeView, ReceiptPage, ReceiptRowView
from billing import queries, receipts
from billing.ledger import balances
from billing.money import format_nano
from metering.database import snapshot
from metering.queries import Bucket

LISTING = "receipts"
REFUSALS = (Unauthenticated, Forbidden, NotFound)


class ReceiptView(msgspec.Struct, frozen=True):
    """A signed receipt and what was signed of it since: enough to verify it offline with the keys
    of `/receipt-keys`.
    """

    receipt: dict[str, Any]
    adjustments: list[dict[str, Any]]


@get(
    "/balance",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read the balance",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def read_balance(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
) -> BalanceView:
    """What is free to spend, and what live requests have reserved."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return BalanceView.of(asked, balances.balance(connection, asked))


@get(
    "/charges",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read charges by day and component",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def read_charges(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
    start: StartQuery = None,
    end: EndQuery = None,
) -> ChargesView:
    """Charges of requests that ended in the range; adjustments count when they were made."""
    asked = ranges.read(start, end, Bucket.DAY)
    with snapshot(database) as connection:
        tenant = tenants.require(connection, tenant_in_scope(connection, principal, tenant_id))
        found = queries.charges(
            connection, tenant.id, asked.start_us, asked.end_us, ZoneInfo(tenant.time_zone)
        )
    return ChargesView(
        tenant_id=tenant.id,
        start=to_time(asked.start_us),
        end=to_time(asked.end_us),
        time_zone=tenant.time_zone,
        currency=tenant.currency,
        total=format_nano(sum(charge.amount_nano for charge in found)),
        items=[ChargeView.of(charge) for charge in found],
    )


@get(
    "/receipts",
    guards=[requires(Scope.READ_BILLING)],
    summary="List receipts",
    responses=documented(InvalidCursor, *REFUSALS),
    sync_to_thread=True,
)
def list_receipts(
    *,
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
    start: StartQuery = None,
    end: EndQuery = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = cursors.PAGE_DEFAULT,
) -> ReceiptPage:
    """Receipts of requests that ended in the range, newest first; without bounds, all."""
    asked = ranges.read_open(start, end)
    after = cursors.decode(LISTING, cursor)
    with snapshot(database) as connection:
        found = queries.receipt_rows(
            connection,
            tenant_in_scope(connection, principal, tenant_id),
            start_us=asked.start_us,
            end_us=asked.end_us,
            limit=limit + 1,
            cursor=after,
        )
    shown, following = cursors.page(
        LISTING, found, limit, lambda row: (row.ended_at_us, row.request_id)
    )
    return ReceiptPage([ReceiptRowView.of(row) for row in shown], following)


@get(
    "/receipts/{request_id:str}",
    guards=[requires(Scope.READ_BILLING)],
    summary="Read a receipt",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def read_receipt(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    request_id: PathId,
) -> ReceiptView:
    """The signed receipt of one request, without its texts, and its signed adjustments."""
    with snapshot(database) as connection:
        envelope = receipts.receipt(connection, visible_tenant(principal, None), request_id)
        if envelope is None:
            raise NotFound(f"no receipt {request_id}")
        return ReceiptView(envelope, receipts.adjustments(connection, request_id))


@get("/receipt-keys", summary="Read the public keys of receipts", sync_to_thread=True)
def receipt_keys(database: NamedDependency[Database]) -> dict[str, Any]:
    """Every key that ever signed a receipt, as a JSON Web Key Set. Open to everybody."""
    with snapshot(database) as connection:
        return receipts.public_keys(connection)
