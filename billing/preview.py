"""What a month would have cost under another tariff: its requests rated again, one by one.

Exact, since rating needs nothing but a request's summary: under the tariff that was in force the
lines are those of the ledger, bit for bit. Taken as they were are what a human decided, whether
the review's fee could be charged, corrections by hand and, up to the new price, what was written
off. Changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, func, select

from billing import rating
from billing.errors import TariffConflict, UsageGone
from billing.invoices import closing, lines, usage
from billing.invoices.lines import InvoiceLine
from billing.invoices.usage import Adjusted, Group
from billing.ledger.balances import currency_of
from billing.money import plain
from billing.periods import Period
from billing.rating import Charge, Component, Line
from billing.tables import adjustments, rated_lines
from billing.tables import receipts as receipts_table
from billing.tariffs import Tariff
from metering.events import RequestSummary
from metering.tables import request_summaries, requests

PAGE = 1000
REJECTED = "review_rejected"
LAPSED = "review_lapsed"
CORRECTION = "correction"


@dataclass(frozen=True, slots=True)
class Preview:
    """A month as a draft prices it beside what was booked; lines as on an invoice, before tax."""

    tenant_id: str
    period: Period
    currency: str
    requests: int
    lines: tuple[InvoiceLine, ...]
    booked: tuple[InvoiceLine, ...]

    @property
    def total_nano(self) -> int:
        """What the month would have cost."""
        return sum(line.amount_nano for line in self.lines)

    @property
    def booked_nano(self) -> int:
        """What it did cost."""
        return sum(line.amount_nano for line in self.booked)


class _Review(msgspec.Struct, frozen=True):
    paid_by: str


class _Receipt(msgspec.Struct, frozen=True):
    """What of a receipt decided about fees."""

    test_mode: bool
    review: _Review | None = None


class _Adjustment(msgspec.Struct, frozen=True):
    reason: str


@dataclass(slots=True)
class _Sum:
    quantity: Decimal = Decimal(0)
    amount_nano: int = 0
    prices: set[str] = field(default_factory=set)


def preview(connection: Connection, tenant_id: str, label: str, draft: Tariff) -> Preview:
    """Rate a tenant's month again under `draft`, in time proportional to its requests.

    Raises UsageGone where a request's summary is not there, TariffConflict for another currency,
    UnknownTenant or InvalidPeriod.
    """
    period = closing.period_of(connection, tenant_id, label)
    currency = currency_of(connection, tenant_id)
    if draft.currency != currency:
        raise TariffConflict(f"the draft is in {draft.currency}, the tenant pays {currency}")
    _check_there(connection, tenant_id, period)
    sums: defaultdict[tuple[str, str, str], _Sum] = defaultdict(_Sum)
    count, given_back, given_back_nano = 0, 0, 0
    written_off = _written_off(connection, tenant_id, period)
    adjusted = _adjusted(connection, tenant_id, period)
    for summary, receipt in _settled(connection, tenant_id, period):
        charge = _rated(summary, receipt, draft)
        count += 1
        fee = charge.of(Component.REVIEW)
        uncovered = min(written_off.get(summary.request_id, 0), charge.total_nano - fee)
        for line in _with_write_off(charge, uncovered):
            total = sums[line.component, line.detail, line.unit]
            total.quantity += line.quantity
            total.amount_nano += line.amount_nano
            total.prices.add(plain(line.unit_price))
        paid = charge.total_nano - fee - uncovered
        for reason, amount_nano in adjusted.get(summary.request_id, ()):
            back = _given_back(reason, amount_nano, charge, paid)
            paid -= 0 if reason == LAPSED else back
            given_back += 1
            given_back_nano += back
    groups = usage.in_order(
        Group(
            None,
            component,
            detail,
            unit,
            total.quantity,
            next(iter(total.prices)) if len(total.prices) == 1 else None,
            total.amount_nano,
        )
        for (component, detail, unit), total in sums.items()
    )
    month = lines.month_prices(connection, tenant_id, period, draft)
    return Preview(
        tenant_id=tenant_id,
        period=period,
        currency=currency,
        requests=count,
        lines=tuple(lines.lines_of(period, groups, Adjusted(given_back, -given_back_nano), month)),
        booked=tuple(lines.held_lines(connection, tenant_id, period)),
    )


def _rated(summary: RequestSummary, receipt: _Receipt, draft: Tariff) -> Charge:
    if receipt.test_mode:
        return rating.waive("test mode")
    by_tenant = receipt.review is not None and receipt.review.paid_by == "tenant"
    return rating.rate(summary, draft, review_fee=by_tenant)


def _with_write_off(charge: Charge, uncovered_nano: int) -> Iterator[Line]:
    yield from (line for line in charge.lines if line.component is not Component.WAIVED)
    if uncovered_nano:
        amount = Decimal(-uncovered_nano).scaleb(-9)
        yield rating.priced(Component.WRITE_OFF, "not covered", rating.ONE, "requests", amount)


def _given_back(reason: str, booked_nano: int, charge: Charge, paid_nano: int) -> int:
    """What an adjustment would have come to: a verdict's refund follows the price."""
    if reason == REJECTED:
        return max(0, min(charge.of(Component.OUTPUT), paid_nano))
    if reason == LAPSED:
        return charge.of(Component.REVIEW)
    return min(-booked_nano, paid_nano) if reason == CORRECTION else 0


def _settled(
    connection: Connection, tenant_id: str, period: Period
) -> Iterator[tuple[RequestSummary, _Receipt]]:
    """The period's requests, read as they are used."""
    summary = request_summaries.c
    found = connection.execute(
        select(summary.body, receipts_table.c.document)
        .join(receipts_table, receipts_table.c.request_id == summary.request_id)
        .where(summary.tenant_id == tenant_id, _within(summary.ended_at_us, period)),
        execution_options={"yield_per": PAGE},
    )
    for body, document in found:
        yield (
            msgspec.json.decode(body, type=RequestSummary),
            msgspec.json.decode(document, type=_Receipt),
        )


def _check_there(connection: Connection, tenant_id: str, period: Period) -> None:
    """Raise UsageGone where a rated request, or one that ended then, has no summary."""
    line, request, summary = rated_lines.c, requests.c, request_summaries.c
    for key, owner, at_us in (
        (line.request_id, line.tenant_id, line.event_time_us),
        (request.id, request.tenant_id, request.ended_at_us),
    ):
        gone = connection.scalar(
            select(func.count(func.distinct(key)))
            .select_from(key.table)
            .outerjoin(request_summaries, summary.request_id == key)
            .where(owner == tenant_id, _within(at_us, period))
            .where(summary.request_id.is_(None) | (summary.body == ""))
        )
        if gone:
            raise UsageGone(f"{gone} requests of {period.label} have no summary any more")


def _written_off(connection: Connection, tenant_id: str, period: Period) -> dict[str, int]:
    line = rated_lines.c
    found = connection.execute(
        select(line.request_id, func.sum(-line.amount_nano))
        .where(line.tenant_id == tenant_id, _within(line.event_time_us, period))
        .where(line.component == Component.WRITE_OFF)
        .group_by(line.request_id)
    )
    return {request_id: int(amount) for request_id, amount in found}


def _adjusted(
    connection: Connection, tenant_id: str, period: Period
) -> dict[str, list[tuple[str, int]]]:
    """What was adjusted of the period's requests, as (reason, amount), in order."""
    made, summary = adjustments.c, request_summaries.c
    found: defaultdict[str, list[tuple[str, int]]] = defaultdict(list)
    for request_id, document, amount in connection.execute(
        select(made.request_id, made.document, made.amount_nano)
        .join(request_summaries, summary.request_id == made.request_id)
        .where(made.tenant_id == tenant_id, _within(summary.ended_at_us, period))
        .order_by(made.created_at_us, made.id)
    ):
        reason = msgspec.json.decode(document, type=_Adjustment).reason
        found[request_id].append((reason, amount))
    return found


def _within(at_us: ColumnElement[Any], period: Period) -> ColumnElement[bool]:
    return and_(at_us >= period.start_us, at_us < period.end_us)
