"""The tax of each month of service, over all invoices that stand. Changes nothing.

A month is taxed by the rate in force at its last moment, or, once it was billed, by the rate that
it was billed at: what corrects it undoes just the tax that was charged with it.

    tax of a month  =  its rate of all that it holds, rounded once
    on an invoice   =  that, less what invoices that stand have of it
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

from sqlalchemy import Connection, select
from sqlalchemy.sql.functions import sum as sum_of

from billing.invoices import minor_units, parties
from billing.invoices.tables import LINE_KINDS, UNBILLED_STATES, invoice_lines, invoices
from billing.periods import Period


@dataclass(frozen=True, slots=True)
class Rate:
    """What a tax is called and how much it is."""

    name: str
    percent: Decimal


UNTAXED = Rate("VAT", Decimal(0))


@dataclass(slots=True)
class Taxed:
    """What invoices that stand have of one month of service."""

    rate: Rate
    charges_nano: int = 0
    tax_minor: int = 0

    def tax_of(self, charges_nano: int, minor: int) -> int:
        """The whole tax of the month, were this all that it holds."""
        return minor_units.tax(minor_units.rounded(charges_nano, minor), self.rate.percent)


@dataclass(slots=True)
class _Charged:
    """What one invoice has of its months of service."""

    charges: dict[str, tuple[int, int]] = field(default_factory=dict)  # nano, minor units
    taxes: dict[str, tuple[Rate, int]] = field(default_factory=dict)

    def shared(self) -> dict[str, tuple[Rate, int]]:
        """The tax of every month that is charged, untaxed ones too.

        Where months have no tax line of their own, the one that there is is of all charges.
        """
        untold = self.charges.keys() - self.taxes.keys()
        if not self.taxes:
            return dict.fromkeys(untold, (UNTAXED, 0))
        if not untold:
            return self.taxes
        own, (rate, tax) = next(iter(self.taxes.items()))
        whole = sum(minor for _, minor in self.charges.values())
        found = {
            label: (rate, round(Fraction(tax * self.charges[label][1], whole)) if whole else 0)
            for label in untold
        }
        left = tax - sum(part for _, part in found.values())
        return {**found, own: (rate, left)} if left or own in self.charges else found


def owed(
    connection: Connection, tenant_id: str, period: Period, charges_nano: int, minor: int
) -> tuple[Rate, int]:
    """The tax on what an invoice would charge of a month of service, beside those that stand."""
    taxed = by_period(connection, tenant_id, period.label).get(period.label)
    if taxed is None:
        customer = parties.customer(connection, tenant_id, period.end_us - 1)
        taxed = Taxed(Rate(customer.tax_name, customer.tax_percent))
    whole = taxed.tax_of(taxed.charges_nano + charges_nano, minor)
    return taxed.rate, whole - taxed.tax_minor


def by_period(connection: Connection, tenant_id: str, label: str | None = None) -> dict[str, Taxed]:
    """What invoices that stand have of each month of a tenant's service, or of this one."""
    line = invoice_lines.c
    standing = (
        select(line.invoice_id)
        .join(invoices, invoices.c.id == line.invoice_id)
        .where(line.tenant_id == tenant_id, invoices.c.state.not_in(UNBILLED_STATES))
    )
    if label is not None:
        standing = standing.where(line.period == label)
    of_them = line.invoice_id.in_(standing)
    found: defaultdict[str, _Charged] = defaultdict(_Charged)
    for invoice_id, period, nano, charged in connection.execute(
        select(line.invoice_id, line.period, sum_of(line.amount_nano), sum_of(line.amount_minor))
        .where(of_them, line.kind.in_(LINE_KINDS))
        .group_by(line.invoice_id, line.period)
    ):
        found[invoice_id].charges[period] = (int(nano), int(charged))
    for row in connection.execute(
        select(line.invoice_id, line.period, line.component, line.unit_price, line.amount_minor)
        .where(of_them, line.kind == "tax")
        .order_by(line.invoice_id, line.line)
    ):
        rate = Rate(row.component, Decimal(row.unit_price) * 100)
        found[row.invoice_id].taxes[row.period] = (rate, row.amount_minor)
    totals: dict[str, Taxed] = {}
    for _, each in sorted(found.items()):  # oldest first: the first to bill a month set its rate
        for period, (rate, tax) in each.shared().items():
            if label in (None, period):
                total = totals.setdefault(period, Taxed(rate))
                total.charges_nano += each.charges.get(period, (0, 0))[0]
                total.tax_minor += tax
    return totals
