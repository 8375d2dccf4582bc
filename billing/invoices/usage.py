"""What a tenant used in a period, added up by the database. Changes nothing.

Quantities are decimals of at most six places; they are added up as whole millionths, so that the
sum is exact on SQLite, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    and_,
    case,
    func,
    or_,
    select,
)

from billing import charged_hours
from billing.invoices.period_models import Charged, from_millionths
from billing.invoices.tables import invoices
from billing.ledger.accounts import Account, AccountKind
from billing.periods import Period
from billing.quantities import millionths
from billing.rating import OURS, Component
from billing.tables import accounts, adjustments, rated_lines, transfers
from metering.events import EnergyClass, RequestStatus
from metering.tables import request_summaries, requests

TENTH_UJ = 100_000


@dataclass(frozen=True, slots=True)
class Group:
    """All rated lines of a period that are alike; `unit_price` is null where theirs differ."""

    tariff_version_id: str | None  # null of a draft
    component: str
    detail: str
    unit: str
    quantity: Decimal
    unit_price: str | None
    amount_nano: int


@dataclass(frozen=True, slots=True)
class Adjusted:
    """Refunds and review fees given back."""

    count: int
    amount_nano: int  # negative: given back


def charged_groups(connection: Connection, tenant_id: str, period: Period) -> list[Group]:
    """The rated lines of requests that ended in the period, alike ones added up, in order."""
    line = rated_lines.c
    alike = (line.tariff_version_id, line.component, line.detail, line.unit)
    query = (
        select(
            *alike,
            func.sum(millionths(connection, line.quantity)),
            func.min(line.unit_price),
            func.max(line.unit_price),
            func.sum(line.amount_nano),
        )
        .where(
            line.tenant_id == tenant_id,
            line.event_time_us >= period.start_us,
            line.event_time_us < period.end_us,
            line.component != Component.WAIVED,
        )
        .group_by(*alike)
    )
    groups = [
        Group(
            version,
            component,
            detail,
            unit,
            from_millionths(int(quantity)),
            low if low == high else None,
            int(amount),
        )
        for version, component, detail, unit, quantity, low, high, amount in connection.execute(
            query
        )
    ]
    return in_order(groups)


def projected_groups(connection: Connection, tenant_id: str, period: Period) -> list[Group]:
    """The same from the hours that were counted before: for pages, not for invoices."""
    found = charged_hours.sums(connection, tenant_id, period.start_us, period.end_us)
    return in_order(
        Group(
            each.tariff_version_id,
            each.component,
            each.detail,
            each.unit,
            from_millionths(each.quantity_millionths),
            each.unit_price,
            each.amount_nano,
        )
        for each in found
        if each.component != Component.WAIVED
    )


def in_order(groups: Iterable[Group]) -> list[Group]:
    """Groups as invoices list them: by version, component, detail and unit."""
    order = {component: place for place, component in enumerate(Component)}
    return sorted(
        groups,
        key=lambda group: (
            group.tariff_version_id or "",
            order[Component(group.component)],
            group.detail,
            group.unit,
        ),
    )


def by_component(groups: Iterable[Group]) -> dict[str, Charged]:
    """What was charged for each component, whatever the detail."""
    totals: dict[str, Charged] = {}
    for group in groups:
        before = totals.get(group.component, Charged(Decimal(0), 0))
        totals[group.component] = Charged(
            before.quantity + group.quantity, before.amount_nano + group.amount_nano
        )
    return totals


def counted() -> tuple[ColumnElement[bool], ...]:
    """Which requests count in prices of the month, of `request_summaries` joined with `requests`.

    Those that ran, test mode left out. Those that we ended without output are waived, and so count
    in no price of the month either.
    """
    summary = request_summaries.c
    waived = (
        select(rated_lines.c.line)
        .where(
            rated_lines.c.request_id == summary.request_id,
            rated_lines.c.component == Component.WAIVED,
            rated_lines.c.detail == OURS,
        )
        .exists()
    )
    return (
        summary.status != RequestStatus.REFUSED,
        requests.c.test_mode.is_(False),
        or_(summary.output_tokens > 0, ~waived),
    )


def measured(connection: Connection, tenant_id: str, period: Period) -> dict[str, Decimal]:
    """The period's quantities by measure, of requests that count."""
    summary = request_summaries.c
    shown = summary.energy_uj - summary.energy_uj % TENTH_UJ  # as each receipt floors it

    def total(column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.coalesce(func.sum(column), 0)

    def joules(kind: EnergyClass) -> ColumnElement[Any]:
        return total(case((summary.energy_class == kind, shown), else_=0))

    query: Select[Any] = (
        select(
            func.count(),
            total(summary.input_tokens),
            total(summary.output_tokens),
            total(summary.complete_units),
            total(summary.fragment_units),
            total(summary.blocks),
            total(summary.information_ubits),
            joules(EnergyClass.MEASURED),
            joules(EnergyClass.ESTIMATED),
            joules(EnergyClass.REPORTED),
        )
        .join(requests, requests.c.id == summary.request_id)
        .where(
            summary.tenant_id == tenant_id,
            _ended_in(period),
            *counted(),
        )
    )
    count, *sums = (int(value) for value in connection.execute(query).one())
    whole, fractions = sums[:5], sums[5:]
    names = ("requests", "input_tokens", "output_tokens", "complete_units", "fragment_units")
    values = {name: Decimal(value) for name, value in zip(names, [count, *whole[:4]], strict=True)}
    values |= dict.fromkeys(("all_blocks", "blocks"), Decimal(whole[4]))  # its older name, too
    fine = ("bits", "joules_measured", "joules_estimated", "joules_reported")
    values |= {name: from_millionths(value) for name, value in zip(fine, fractions, strict=True)}
    return values


def adjusted(connection: Connection, tenant_id: str, period: Period) -> Adjusted:
    """What was given back, whenever it was decided, of requests that ended in the period."""
    count, amount = connection.execute(
        select(func.count(), func.coalesce(func.sum(adjustments.c.amount_nano), 0))
        .join(request_summaries, request_summaries.c.request_id == adjustments.c.request_id)
        .where(adjustments.c.tenant_id == tenant_id, _ended_in(period))
    ).one()
    return Adjusted(count, int(amount))


def accrued(connection: Connection, tenant_id: str, currency: str, period: Period) -> int:
    """What the period's requests still owe: accrued for them, and on no invoice yet.

    A request's transfers count with its period, whenever they were booked, so that what a live
    request has reserved is in none.
    """
    account = Account(tenant_id, AccountKind.ACCRUED, currency).id
    if connection.scalar(select(accounts.c.id).where(accounts.c.id == account)) is None:
        return 0
    left = func.coalesce(func.sum(_left(account)), 0)
    used = connection.scalar(
        select(left)
        .select_from(request_summaries)
        .join(transfers, transfers.c.request_id == request_summaries.c.request_id)
        .where(request_summaries.c.tenant_id == tenant_id, _ended_in(period))
    )
    issued = connection.scalars(
        select(invoices.c.id).where(invoices.c.tenant_id == tenant_id, invoices.c.state != "draft")
    )
    names = [
        name
        for invoice_id in issued
        for name in accrual_names(f"invoice/{invoice_id}", period.label)
    ]
    invoiced = connection.scalar(select(left).where(transfers.c.id.in_(names)))
    return int(used or 0) + int(invoiced or 0)


def accrual_names(cause: str, label: str) -> tuple[str, str]:
    """The ids under which an invoice takes a period's accrued usage over, and gives it back."""
    name = f"{cause}/accrued/{label}"
    return name, f"{name}/void"


def _left(account: str) -> ColumnElement[Any]:
    """What a transfer took out of an account; negative where it came in."""
    amount = transfers.c.amount_nano
    return case(
        (transfers.c.debit_account_id == account, amount),
        (transfers.c.credit_account_id == account, -amount),
        else_=0,
    )


def _ended_in(period: Period) -> ColumnElement[bool]:
    ended = request_summaries.c.ended_at_us
    return and_(ended >= period.start_us, ended < period.end_us)
