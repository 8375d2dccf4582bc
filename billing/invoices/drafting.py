"""What an invoice of a period says now: its lines and sums. Reads one snapshot, changes nothing.

Every period is billed by difference: all that it holds, less all that earlier invoices billed of
it. For a period that was never billed that is the whole of it; for one that was, it is what came
late. So nothing is billed twice, and nothing is lost, in whatever order it came.

    charges        C   rated lines, adjustments and period prices, exact
    tax            T   of each month of service what `taxes` says, in minor units
    to pay         X = (accrued usage + period prices) + T, exact
    due                X rounded to minor units; where X is negative it is 0, and X goes back into
                       the tenant's credit, to the nano
    from credit        C + T - due: what credit has paid already
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from sqlalchemy import Connection, bindparam, case, func, select

from billing.invoices import closed_periods, minor_units, parties, taxes, usage
from billing.invoices.closed_periods import LatePeriod
from billing.invoices.lines import AddUp, InvoiceLine, held_lines
from billing.invoices.parties import Customer, Issuer
from billing.invoices.tables import LINE_KINDS, UNBILLED_STATES, invoice_lines, invoices
from billing.invoices.taxes import Rate
from billing.ledger.balances import currency_of
from billing.money import plain
from billing.periods import Period
from metering.prepared import Prepared


@dataclass(frozen=True, slots=True)
class Unbilled:
    """What one service period holds that no invoice has billed, and how it is to be paid."""

    period: Period
    late: int  # the count of late bookings that this took in
    lines: tuple[InvoiceLine, ...]
    accrued_nano: int

    @property
    def charges_nano(self) -> int:
        """What its lines charge."""
        return sum(line.amount_nano for line in self.lines)


@dataclass(frozen=True, slots=True)
class Draft:
    """An invoice as it would be issued now."""

    tenant_id: str
    kind: str
    period: Period
    currency: str
    minor_nano: int
    issuer: Issuer
    customer: Customer
    parts: tuple[Unbilled, ...]
    lines: tuple[InvoiceLine, ...]  # charges, then tax, then what credit paid
    charges_nano: int
    subtotal_minor: int
    tax_minor: int
    credit_minor: int
    due_minor: int
    owed_nano: int  # what the due was rounded from; negative goes back into credit
    standing: int  # invoices of the tenant, and voids among them, that this took into account

    @property
    def returned_nano(self) -> int:
        """What goes back into credit, to the nano."""
        return max(-self.owed_nano, 0)

    @property
    def total_minor(self) -> int:
        """Charges and tax."""
        return self.subtotal_minor + self.tax_minor

    @property
    def is_empty(self) -> bool:
        """Whether nothing is charged nor moved: usage that costs nothing takes no number."""
        charged = any(line.amount_nano for line in self.lines)
        return not charged and not any(part.accrued_nano for part in self.parts)


def draft(
    connection: Connection,
    tenant_id: str,
    period: Period,
    add_up: AddUp = usage.charged_groups,
) -> Draft:
    """The period's invoice, with what came late into earlier ones; raises UnknownTenant."""
    late = [
        found
        for found in closed_periods.late_periods(connection, tenant_id)
        if found.period.label != period.label
    ]
    own = LatePeriod(period, closed_periods.late_count(connection, tenant_id, period.label))
    return _drafted(connection, tenant_id, "period", period, [own, *late], add_up)


def correction(connection: Connection, tenant_id: str, period: Period, number: int) -> Draft:
    """An invoice of only what a closed period holds beyond what was billed of it."""
    own = LatePeriod(period, closed_periods.late_count(connection, tenant_id, period.label))
    return _drafted(connection, tenant_id, f"correction-{number}", period, [own])


def unbilled(
    connection: Connection,
    tenant_id: str,
    wanted: LatePeriod,
    add_up: AddUp = usage.charged_groups,
) -> Unbilled:
    """All that a period holds, less all that was billed of it."""
    currency = currency_of(connection, tenant_id)
    held = held_lines(connection, tenant_id, wanted.period, add_up)
    before = _billed(connection, tenant_id, wanted.period.label)
    lines = []
    for line in held:
        billed = before.pop(line.key, None)
        lines.append(line if billed is None else _less(line, billed))
    lines += [
        replace(gone, quantity=-gone.quantity, amount_nano=-gone.amount_nano)
        for gone in before.values()
    ]
    return Unbilled(
        wanted.period,
        wanted.late,
        tuple(line for line in lines if line.quantity or line.amount_nano),
        usage.accrued(connection, tenant_id, currency, wanted.period),
    )


_STANDING = Prepared(
    select(func.coalesce(func.sum(case((invoices.c.state == "void", 2), else_=1)), 0)).where(
        invoices.c.tenant_id == bindparam("tenant_id"), invoices.c.state != "draft"
    )
)


def standing(connection: Connection, tenant_id: str) -> int:
    """A count that grows with every invoice of the tenant that is issued or voided."""
    return int(_STANDING.one(connection, {"tenant_id": tenant_id})[0])


def _drafted(  # noqa: PLR0917 - what an invoice is of, and how that is added up
    connection: Connection,
    tenant_id: str,
    kind: str,
    period: Period,
    wanted: Iterable[LatePeriod],
    add_up: AddUp = usage.charged_groups,
) -> Draft:
    currency = currency_of(connection, tenant_id)
    minor = minor_units.minor_nano(currency)
    parts = tuple(unbilled(connection, tenant_id, each, add_up) for each in wanted)
    charges = [line for part in parts for line in part.lines]
    charges_nano = sum(line.amount_nano for line in charges)
    subtotal = minor_units.rounded(charges_nano, minor)
    taxed = [
        taxes.owed(connection, tenant_id, part.period, part.charges_nano, minor) for part in parts
    ]
    tax = sum(amount for _, amount in taxed)
    owed = sum(part.accrued_nano for part in parts) + tax * minor
    owed += sum(line.amount_nano for line in charges if line.kind == "period")
    due = minor_units.rounded(max(owed, 0), minor)
    credit = subtotal + tax - due
    amounts = minor_units.apportion([line.amount_nano for line in charges], subtotal, minor)
    lines = [
        replace(line, amount_minor=amount) for line, amount in zip(charges, amounts, strict=True)
    ]
    lines += _taxes(parts, taxed, lines, minor)
    paid_nano = charges_nano + tax * minor - max(owed, 0)
    if credit or paid_nano:
        lines.append(_summary_line("credit", "credit", period, -paid_nano, -credit))
    return Draft(
        tenant_id=tenant_id,
        kind=kind,
        period=period,
        currency=currency,
        minor_nano=minor,
        issuer=parties.issuer(connection),
        customer=parties.customer(connection, tenant_id, period.end_us - 1),
        parts=parts,
        lines=tuple(lines),
        charges_nano=charges_nano,
        subtotal_minor=subtotal,
        tax_minor=tax,
        credit_minor=credit,
        due_minor=due,
        owed_nano=owed,
        standing=standing(connection, tenant_id),
    )


def _billed(
    connection: Connection, tenant_id: str, label: str
) -> dict[tuple[str | None, ...], InvoiceLine]:
    """What standing invoices have billed of a service period, alike lines added up."""
    line = invoice_lines.c
    rows = connection.execute(
        select(
            line.kind,
            line.component,
            line.detail,
            line.quantity,
            line.unit,
            line.unit_price,
            line.tariff_version_id,
            line.period,
            line.amount_nano,
        )
        .join(invoices, invoices.c.id == line.invoice_id)
        .where(
            line.tenant_id == tenant_id,
            line.period == label,
            line.kind.in_(LINE_KINDS),
            invoices.c.state.not_in(UNBILLED_STATES),
        )
        .order_by(line.invoice_id, line.line)
    )
    found: dict[tuple[str | None, ...], InvoiceLine] = {}
    for row in rows:
        billed = InvoiceLine(*row)
        billed = replace(billed, quantity=Decimal(row.quantity))
        before = found.get(billed.key)
        if before is not None:
            billed = replace(
                billed,
                quantity=before.quantity + billed.quantity,
                amount_nano=before.amount_nano + billed.amount_nano,
            )
        found[billed.key] = billed
    return found


def _less(line: InvoiceLine, billed: InvoiceLine) -> InvoiceLine:
    return replace(
        line,
        quantity=line.quantity - billed.quantity,
        amount_nano=line.amount_nano - billed.amount_nano,
    )


def _taxes(
    parts: Sequence[Unbilled],
    taxed: Sequence[tuple[Rate, int]],
    charges: Sequence[InvoiceLine],
    minor: int,
) -> list[InvoiceLine]:
    """A line for each month of service; none at all where nothing is taxed.

    Once one month is taxed, one that is not says so: it is by its line that its rate is known.
    """
    found = [
        (part.period, rate, amount)
        for part, (rate, amount) in zip(parts, taxed, strict=True)
        if part.lines or amount
    ]
    if not any(rate.percent or amount for _, rate, amount in found):
        return []
    return [
        replace(
            _summary_line("tax", rate.name, period, amount * minor, amount),
            detail=f"{plain(rate.percent)} %",
            quantity=_charged(charges, period, minor),
            unit="charged",
            unit_price=plain(rate.percent / 100),
        )
        for period, rate, amount in found
    ]


def _charged(lines: Sequence[InvoiceLine], period: Period, minor: int) -> Decimal:
    """What lines as stated charge of a month of service, in units of the currency."""
    stated = sum(line.amount_minor for line in lines if line.period == period.label)
    return Decimal(stated * minor).scaleb(-9)


def _summary_line(
    kind: str, component: str, period: Period, amount_nano: int, amount_minor: int
) -> InvoiceLine:
    return InvoiceLine(
        kind,
        component,
        "",
        Decimal(1),
        "periods",
        None,
        None,
        period.label,
        amount_nano,
        amount_minor,
    )
