"""The lines of a period: what was used, what was given back, and the prices of the month.

Reads what it is given a connection for, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from sqlalchemy import Connection

from billing import catalogue
from billing.errors import NoTariff
from billing.invoices import period_models, usage
from billing.money import plain
from billing.period_terms import PeriodPrice
from billing.periods import Period
from billing.tariffs import Tariff

# What adds a period's rated lines up.
AddUp = Callable[[Connection, str, Period], list[usage.Group]]


@dataclass(frozen=True, slots=True)
class InvoiceLine:
    """One line; `period` is the month of the service, which may be before the invoice's."""

    kind: str
    component: str
    detail: str
    quantity: Decimal
    unit: str
    unit_price: str | None
    tariff_version_id: str | None
    period: str
    amount_nano: int
    amount_minor: int = 0

    @property
    def key(self) -> tuple[str | None, ...]:
        """What makes two lines one, for billing by difference."""
        return (self.kind, self.component, self.detail, self.unit, self.tariff_version_id)


@dataclass(frozen=True, slots=True)
class MonthPrices:
    """The prices of a month, and the quantities that they are of."""

    prices: Mapping[str, PeriodPrice]
    measured: Mapping[str, Decimal]
    version_id: str | None  # null of a draft


def held_lines(
    connection: Connection,
    tenant_id: str,
    period: Period,
    add_up: AddUp = usage.charged_groups,
) -> list[InvoiceLine]:
    """All lines of a service period, as if nothing had been billed.

    Its prices of the month are those of the tariff in force at its last moment.
    """
    groups = add_up(connection, tenant_id, period)
    adjusted = usage.adjusted(connection, tenant_id, period)
    try:
        version = catalogue.tariff_in_force(connection, tenant_id, period.end_us - 1)
    except NoTariff:
        return lines_of(period, groups, adjusted)
    month = month_prices(connection, tenant_id, period, version.document, version.id)
    return lines_of(period, groups, adjusted, month)


def month_prices(
    connection: Connection,
    tenant_id: str,
    period: Period,
    tariff: Tariff,
    version_id: str | None = None,
) -> MonthPrices | None:
    """A tariff's prices of the month and what they are applied to; null where it has none."""
    if not tariff.period:
        return None
    return MonthPrices(tariff.period, usage.measured(connection, tenant_id, period), version_id)


def lines_of(
    period: Period,
    groups: Sequence[usage.Group],
    adjusted: usage.Adjusted,
    month: MonthPrices | None = None,
) -> list[InvoiceLine]:
    """The lines of what was used, then of what was given back, then of the prices of the month."""
    lines = [
        InvoiceLine(
            "usage",
            group.component,
            group.detail,
            group.quantity,
            group.unit,
            group.unit_price,
            group.tariff_version_id,
            period.label,
            group.amount_nano,
        )
        for group in groups
    ]
    if adjusted.count:
        lines.append(
            InvoiceLine(
                "adjustment",
                "adjustment",
                "",
                Decimal(adjusted.count),
                "adjustments",
                None,
                None,
                period.label,
                adjusted.amount_nano,
            )
        )
    if month is None:
        return lines
    paid = sum(line.amount_nano for line in lines)
    return lines + [
        InvoiceLine(
            "period",
            name,
            line.detail,
            line.quantity,
            line.unit,
            None if line.unit_price is None else plain(line.unit_price),
            month.version_id,
            period.label,
            line.amount_nano,
        )
        for name, line in period_models.price_all(
            month.prices, month.measured, usage.by_component(groups), paid
        )
    ]
