"""What pages, API and metrics read of the money. Changes nothing; amounts are nano.

Page cursors are the last row's position and exclusive: callers make them opaque.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, tzinfo

import msgspec
from sqlalchemy import Connection, case, func, select, tuple_

from billing import charged_hours
from billing.ledger.accounts import Account, AccountKind
from billing.ledger.balances import currency_of
from billing.tables import (
    accounts,
    adjustments,
    holds,
    rated_lines,
    receipts,
    transfers,
)
from billing.typical import Typical, typical_of
from metering.events import EnergySummary, RequestSummary
from metering.ingestion.outside import ROUTE as OUTSIDE
from metering.local_days import day_of
from metering.tables import request_summaries, requests

ADJUSTMENT = "adjustment"
TYPICAL_SAMPLE = 200  # requests
LOOKED_AT = 2_000  # for these: a tenant may have a long history that is all another engine's


@dataclass(frozen=True, slots=True)
class DailyCharge:
    """What one component came to on one day of the reader's time zone."""

    day: date
    component: str  # of a rated line, or "adjustment": refunds, and fees given back
    amount_nano: int
    currency: str


@dataclass(frozen=True, slots=True)
class RatedLine:
    """One line of a request's price, decimals as they stand on its receipt."""

    component: str
    detail: str
    quantity: str
    unit: str
    unit_price: str
    amount_nano: int
    currency: str


@dataclass(frozen=True, slots=True)
class ReceiptRow:
    """One receipt in a list, with what its request came to."""

    request_id: str
    created_at_us: int
    ended_at_us: int
    model: str
    status: str
    finish_reason: str | None
    test_mode: bool
    input_tokens: int
    output_tokens: int
    complete_units: int
    fragment_units: int
    tier: str | None
    geo_mean: str | None
    energy_class: str
    shown_uj: int | None
    total_nano: int
    adjusted_nano: int  # sum of its adjustments; negative was given back
    currency: str


@dataclass(frozen=True, slots=True)
class StatementEntry:
    """One movement of a tenant's credit: positive came in, negative went out."""

    seq: int
    booked_at_us: int
    kind: str
    request_id: str | None
    amount_nano: int
    currency: str


@dataclass(frozen=True, slots=True)
class AccountTotal:
    """All accounts of one kind: credits minus debits."""

    kind: str
    currency: str
    balance_nano: int


def charges(
    connection: Connection, tenant_id: str, start_us: int, end_us: int, zone: tzinfo = UTC
) -> list[DailyCharge]:
    """A tenant's charges of requests that ended in [start, end), by local day and component.

    Adjustments count on the day they were made. Days without any are absent.
    """
    totals = charged_hours.daily(connection, tenant_id, start_us, end_us, zone)
    made = adjustments.c.created_at_us
    adjusted = (
        select(made, receipts.c.currency, adjustments.c.amount_nano)
        .join(receipts, receipts.c.sha256 == adjustments.c.receipt_sha256)
        .where(adjustments.c.tenant_id == tenant_id, made >= start_us, made < end_us)
    )
    for at_us, currency, amount in connection.execute(adjusted):
        totals[day_of(at_us, zone), ADJUSTMENT, currency] += int(amount)
    return [
        DailyCharge(day, component, amount, currency)
        for (day, component, currency), amount in sorted(totals.items())
    ]


def lines(connection: Connection, request_id: str) -> list[RatedLine]:
    """The rated lines of a request, in the receipt's order; empty while it runs."""
    rows = connection.execute(
        select(
            rated_lines.c.component,
            rated_lines.c.detail,
            rated_lines.c.quantity,
            rated_lines.c.unit,
            rated_lines.c.unit_price,
            rated_lines.c.amount_nano,
            rated_lines.c.currency,
        )
        .where(rated_lines.c.request_id == request_id)
        .order_by(rated_lines.c.line)
    )
    return [RatedLine(*row) for row in rows]


def receipt_rows(
    connection: Connection,
    tenant_id: str,
    *,
    start_us: int,
    end_us: int,
    limit: int,
    cursor: tuple[int, str] | None = None,
) -> list[ReceiptRow]:
    """A tenant's receipts of requests that ended in [start, end), newest first.

    `cursor` is the last row's `(ended_at_us, request_id)`.
    """
    summary = request_summaries.c
    adjusted = (
        select(func.coalesce(func.sum(adjustments.c.amount_nano), 0))
        .where(adjustments.c.request_id == receipts.c.request_id)
        .scalar_subquery()
    )
    query = (
        select(
            receipts.c.request_id,
            receipts.c.created_at_us,
            summary.ended_at_us,
            requests.c.model,
            requests.c.status,
            requests.c.finish_reason,
            requests.c.test_mode,
            summary.input_tokens,
            summary.output_tokens,
            summary.complete_units,
            summary.fragment_units,
            summary.tier,
            summary.geo_mean,
            summary.energy_class,
            summary.body,
            receipts.c.total_nano,
            adjusted.label("adjusted_nano"),
            receipts.c.currency,
        )
        .join(requests, requests.c.id == receipts.c.request_id)
        .join(request_summaries, summary.request_id == receipts.c.request_id)
        .where(
            summary.tenant_id == tenant_id,
            summary.ended_at_us >= start_us,
            summary.ended_at_us < end_us,
        )
        .order_by(summary.ended_at_us.desc(), summary.request_id.desc())
        .limit(limit)
    )
    if cursor is not None:
        query = query.where(tuple_(summary.ended_at_us, summary.request_id) < cursor)
    rows = []
    for row in connection.execute(query).mappings():
        values = dict(row)
        values["shown_uj"] = _shown_uj(values.pop("body"))
        values["adjusted_nano"] = int(values["adjusted_nano"])
        rows.append(ReceiptRow(**values))
    return rows


def statement(
    connection: Connection, tenant_id: str, limit: int, cursor: int | None = None
) -> list[StatementEntry]:
    """Every movement of what a tenant pays from, newest first: credit, promotional credit, and
    what it owes, which counts as below zero. `cursor` is the last row's `seq`.
    """
    currency = currency_of(connection, tenant_id)
    k = AccountKind
    kinds = (k.TENANT_CREDIT, k.PROMOTIONAL, k.ACCRUED, k.RECEIVABLE)
    means = [Account(tenant_id, kind, currency).id for kind in kinds]
    # What only moves between them, as accrued usage onto an invoice, changes nothing.
    came_in = transfers.c.credit_account_id.in_(means)
    query = (
        select(
            transfers.c.seq,
            transfers.c.booked_at_us,
            transfers.c.kind,
            transfers.c.request_id,
            case((came_in, transfers.c.amount_nano), else_=-transfers.c.amount_nano),
            transfers.c.currency,
        )
        .where(came_in != transfers.c.debit_account_id.in_(means))
        .order_by(transfers.c.seq.desc())
        .limit(limit)
    )
    if cursor is not None:
        query = query.where(transfers.c.seq < cursor)
    return [StatementEntry(*row) for row in connection.execute(query)]


def books(connection: Connection) -> list[AccountTotal]:
    """The whole ledger, by kind of account and currency; per currency it sums to zero."""
    rows = connection.execute(
        select(
            accounts.c.kind,
            accounts.c.currency,
            func.sum(accounts.c.credits_nano) - func.sum(accounts.c.debits_nano),
        )
        .group_by(accounts.c.kind, accounts.c.currency)
        .order_by(accounts.c.currency, accounts.c.kind)
    )
    return [AccountTotal(kind, currency, int(balance)) for kind, currency, balance in rows]


def holds_open(connection: Connection) -> int:
    """Holds that are pending."""
    pending = select(func.count()).select_from(holds).where(holds.c.state == "pending")
    return int(connection.scalar(pending) or 0)


def typical(connection: Connection, tenant_id: str | None = None) -> Typical:
    """What our latest requests, of a tenant or of all, came to: what `quotes.expected` guesses by.

    A measure that none of them has stays null, and without any request all is as by default. What
    another engine takes tells nothing of ours, and among too much of it ours are not looked for.
    """
    last = (
        select(request_summaries.c.request_id, request_summaries.c.ended_at_us)
        .order_by(request_summaries.c.ended_at_us.desc())
        .limit(LOOKED_AT)
    )
    if tenant_id is not None:
        last = last.where(request_summaries.c.tenant_id == tenant_id)
    recent = last.subquery()
    query = (
        select(request_summaries.c.body)
        .join(recent, recent.c.request_id == request_summaries.c.request_id)
        .join(requests, requests.c.id == request_summaries.c.request_id)
        .where(request_summaries.c.output_tokens > 0, requests.c.route != OUTSIDE)
        .order_by(recent.c.ended_at_us.desc())
        .limit(TYPICAL_SAMPLE)
    )
    latest = [msgspec.json.decode(body, type=RequestSummary) for body in connection.scalars(query)]
    return typical_of(latest)


def _shown_uj(summary_body: str) -> int | None:
    return msgspec.json.decode(summary_body, type=_EnergyOnly).energy.shown_uj


class _EnergyOnly(msgspec.Struct):
    energy: EnergySummary
