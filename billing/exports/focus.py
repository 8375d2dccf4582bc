"""One tenant's month as FOCUS rows: its invoices to the cent, and what no invoice has billed yet.

    usage, refunds       one row a day, price and bearer (project, key, end user, tags)
    prices of the month  one row each, as on the invoice
    tax                  one row each month of service
    credit spent         one row
    rounding             what makes the exact charges the invoice's whole cents
    purchases of credit  billed when they were bought; what they pay for is billed at nothing

The rows of an invoice add up to what it asks to be paid. Where what was booked about the time an
invoice was drawn up can't be told apart, a row of the difference keeps that so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, select

from billing import catalogue, periods
from billing.exports import charges, list_prices, stretches
from billing.exports.charges import Part
from billing.exports.columns import Row
from billing.exports.focus_rows import (
    Key,
    Owed,
    millionths,
    name_of,
    periodic,
    plain,
    priced,
    residual,
)
from billing.exports.stretches import Booked
from billing.invoices import closing, parties
from billing.invoices.tables import (
    LINE_KINDS,
    UNBILLED_STATES,
    credit_notes,
    invoice_lines,
    invoices,
)
from billing.ledger.accounts import Account, AccountKind
from billing.ledger.balances import currency_of
from billing.periods import Period
from billing.rating import Component
from billing.tables import transfers
from billing.tariffs import Tariff

SERVICE = {
    "ServiceCategory": "AI and Machine Learning",
    "ServiceSubcategory": "Generative AI",
    "ServiceName": "DFlash Gateway",
}


@dataclass(frozen=True, slots=True)
class Book:
    """What every row of one invoice, or of what none has billed, begins with."""

    connection: Connection
    tenant_id: str
    head: Row
    projects: Mapping[str, str]
    bases: dict[str, Tariff | None] = field(default_factory=dict)  # list prices, by version


def rows(
    connection: Connection, tenant_id: str, label: str, projects: Mapping[str, str]
) -> Iterator[Row]:
    """Every charge of a tenant's billing period, in a fixed order; `projects` are names by id.

    Raises UnknownTenant or InvalidPeriod, before the first row.
    """
    period = closing.period_of(connection, tenant_id, label)
    currency = currency_of(connection, tenant_id)
    head: Row = {
        **SERVICE,
        **_named(parties.issuer(connection).name, parties.customer(connection, tenant_id).name),
        "BillingAccountId": tenant_id,
        "BillingPeriodStart": period.start_us,
        "BillingPeriodEnd": period.end_us,
        "BillingCurrency": currency,
        "PricingCurrency": currency,
    }
    made = _rows(Book(connection, tenant_id, head, projects), period, currency)
    return (_in_pricing_currency(row) for row in made)


def _named(issuer: str, customer: str) -> Row:
    """Who charges, and whom."""
    names = dict.fromkeys(("InvoiceIssuerName", "ProviderName", "PublisherName"), issuer)
    return {"BillingAccountName": customer, **names}


def _in_pricing_currency(row: Row) -> Row:
    """Prices are in the currency that is billed."""
    for name in ("ListUnitPrice", "ContractedUnitPrice", "EffectiveCost"):
        row[f"PricingCurrency{name}"] = row.get(name)
    return row


def _rows(book: Book, period: Period, currency: str) -> Iterator[Row]:
    invoice = invoices.c
    issued = book.connection.execute(
        select(invoices)
        .where(
            invoice.tenant_id == book.tenant_id,
            invoice.period == period.label,
            invoice.state.not_in(UNBILLED_STATES),
        )
        .order_by(invoice.finalised_at_us, invoice.number)
    ).mappings()
    for row in issued.all():
        # As the invoice says, whatever they are called since.
        names = (json.loads(row[party])["name"] for party in ("issuer", "customer"))
        own = replace(book, head=book.head | _named(*names))
        head = own.head | {"InvoiceId": row["number"]}
        yield from _invoice(replace(own, head=head), row)
        yield from _credit_notes(own, row)
    billing = stretches.billing(book.connection, book.tenant_id, period.label)
    for part, start_us, end_us in _parts(book, period, billing.unbilled):
        yield _of_part(book, part, start_us, end_us)
    yield from _purchases(book, period, currency)


def _invoice(book: Book, invoice: Mapping[Any, Any]) -> Iterator[Row]:
    line = invoice_lines.c
    found = book.connection.execute(
        select(invoice_lines)
        .where(line.invoice_id == invoice["id"], line.kind.in_(LINE_KINDS))
        .order_by(line.line)
    )
    lines = found.mappings().all()
    for label in sorted({each["period"] for each in lines}):
        own = [each for each in lines if each["period"] == label]
        yield from _service(book, invoice["id"], label, own)
    yield from _whole(book, invoice, sum(each["amount_nano"] for each in lines))


def _service(
    book: Book, invoice_id: str, label: str, lines: Sequence[Mapping[Any, Any]]
) -> Iterator[Row]:
    """What an invoice charges for one month of service: its own, or an earlier one's rest."""
    service = closing.period_of(book.connection, book.tenant_id, label)
    billing = stretches.billing(book.connection, book.tenant_id, label)
    before = _billed_before(book, label, billing.beside[invoice_id])
    left = {
        _key(each): Owed(Decimal(each["quantity"]), each["amount_nano"])
        for each in lines
        if each["kind"] != "period"
    }
    for part, start_us, end_us in _parts(book, service, billing.stretches[invoice_id]):
        rest = left.setdefault(part.key, Owed(Decimal(0), 0))
        rest.quantity -= part.quantity
        rest.amount_nano -= part.amount_nano
        yield _of_part(book, part, start_us, end_us)
    span: Row = {"ChargePeriodStart": service.start_us, "ChargePeriodEnd": service.end_us}
    correction: Row = span | {"ChargeClass": "Correction"}
    for key, rest in left.items():
        if rest.quantity or rest.amount_nano:
            yield book.head | (correction if key in before else span) | residual(key, rest)
    for each in lines:
        if each["kind"] == "period":
            corrects = _key(each) in before
            head = book.head | (correction if corrects else span)
            listed = _list_period_price(book, each)
            yield head | periodic(each, listed=listed, corrects=corrects)


def _key(line: Mapping[Any, Any]) -> Key:
    names = ("kind", "component", "detail", "unit", "tariff_version_id")
    return tuple(line[name] for name in names)


def _whole(book: Book, invoice: Mapping[Any, Any], charges_nano: int) -> Iterator[Row]:
    """What belongs to no charge: tax, what credit paid, and the rounding to whole cents."""
    minor = invoice["minor_nano"]
    span = {"ChargePeriodStart": invoice["start_us"], "ChargePeriodEnd": invoice["end_us"]}
    rounding = invoice["subtotal_minor"] * minor - charges_nano
    if rounding:
        row = plain("Adjustment", "Rounding to the currency's minor unit", rounding)
        yield book.head | span | row | {"x_Component": "rounding"}
    yield from _taxes(book, invoice["id"])
    if credit := invoice["credit_minor"] * minor:
        name = "Paid from credit" if credit > 0 else "Returned into credit"
        # What it pays for stands at its full effective cost, so spending credit has none.
        row = plain("Adjustment", name, -credit) | dict.fromkeys(
            ("ListCost", "ContractedCost", "EffectiveCost"), Decimal(0)
        )
        yield book.head | span | row | {"x_Component": "credit"}


def _taxes(book: Book, invoice_id: str) -> Iterator[Row]:
    """The tax of each month of service, by the rate and the name that the invoice states."""
    line = invoice_lines.c
    found = book.connection.execute(
        select(line.component, line.detail, line.period, line.amount_nano)
        .where(line.invoice_id == invoice_id, line.kind == "tax", line.amount_nano != 0)
        .order_by(line.line)
    )
    for name, rate, label, nano in found.all():
        service = closing.period_of(book.connection, book.tenant_id, label)
        row: Row = {"ChargePeriodStart": service.start_us, "ChargePeriodEnd": service.end_us}
        if stretches.billing(book.connection, book.tenant_id, label).beside.get(invoice_id):
            row["ChargeClass"] = "Correction"
        described = plain("Tax", f"{name} ({rate})" if rate else name, nano)
        yield book.head | row | described | {"x_Component": "tax"}


def _credit_notes(book: Book, invoice: Mapping[Any, Any]) -> Iterator[Row]:
    """What was taken back of an invoice: documents of their own, with their own numbers."""
    note = credit_notes.c
    found = book.connection.execute(
        select(credit_notes).where(note.invoice_id == invoice["id"]).order_by(note.number)
    )
    span = {"ChargePeriodStart": invoice["start_us"], "ChargePeriodEnd": invoice["end_us"]}
    for row in found.mappings().all():
        head = book.head | span | {"InvoiceId": row["number"], "x_Component": "credit_note"}
        for category, name, amount in (
            ("Adjustment", row["reason"], row["net_minor"]),
            ("Tax", "Tax", row["tax_minor"]),
        ):
            if amount:
                nano = -amount * invoice["minor_nano"]
                yield head | plain(category, f"{name} ({invoice['number']})", nano)


def _purchases(book: Book, period: Period, currency: str) -> Iterator[Row]:
    """Credit that was paid for in the period, and what of such was paid back."""
    account = Account(book.tenant_id, AccountKind.TENANT_CREDIT, currency).id
    cash = Account(None, AccountKind.CASH, currency).id
    clearing = Account(None, AccountKind.PAYMENT_CLEARING, currency).id
    move = transfers.c
    bought = (move.debit_account_id.in_([cash, clearing]) & (move.credit_account_id == account)) | (
        move.credit_account_id.in_([cash, clearing]) & (move.debit_account_id == account)
    )
    found = book.connection.execute(
        select(move.id, move.credit_account_id, move.amount_nano, move.event_time_us)
        .where(
            bought,
            move.event_time_us >= period.start_us,
            move.event_time_us < period.end_us,
        )
        .order_by(move.seq)
    )
    for _, credited, amount, at_us in found.all():
        nano = amount if credited == account else -amount
        value = Decimal(nano).scaleb(-9)
        yield book.head | {
            **plain("Purchase", "Credit bought" if nano > 0 else "Credit paid back", nano),
            "ChargeFrequency": "One-Time",
            "ChargePeriodStart": at_us,
            "ChargePeriodEnd": at_us + 10**6,
            "EffectiveCost": Decimal(0),
            "SkuId": "credit",
            "SkuMeter": "Credit",
            "SkuPriceId": f"credit/{currency}",
            "PricingCategory": "Standard",
            "PricingQuantity": value,
            "PricingUnit": currency,
            "ListUnitPrice": Decimal(1),
            "ContractedUnitPrice": Decimal(1),
            "x_Component": "credit",
        }


def _billed_before(book: Book, label: str, beside: Sequence[str]) -> set[Key]:
    """The lines of a service period that other invoices had billed already."""
    line = invoice_lines.c
    found = book.connection.execute(
        select(invoice_lines).where(line.invoice_id.in_(beside), line.period == label)
    )
    return {_key(each) for each in found.mappings()}


def _parts(book: Book, period: Period, booked: Sequence[Booked]) -> Iterator[tuple[Part, int, int]]:
    for start_us, end_us in periods.days(period):
        for part in charges.parts(book.connection, book.tenant_id, start_us, end_us, booked):
            yield part, start_us, end_us


def _of_part(book: Book, part: Part, start_us: int, end_us: int) -> Row:
    row = book.head | {
        "ChargePeriodStart": start_us,
        "ChargePeriodEnd": end_us,
        "Tags": None if part.tags is None else json.loads(part.tags),
        "x_Component": part.component,
        "x_TariffVersion": part.tariff_version_id,
        "x_Model": part.model,
        "x_KeyId": part.key_id,
        "x_EndUser": part.end_user,
        "x_EnergyClass": part.energy_class,
        "x_RequestCount": Decimal(part.requests),
        "x_CompleteUnits": Decimal(part.complete_units),
        "x_FragmentUnits": Decimal(part.fragment_units),
        "x_InformationBits": millionths(part.information_ubits),
        "x_EnergyJoules": millionths(part.shown_uj),
    }
    if part.project_id is not None:
        row["SubAccountId"] = part.project_id
        row["SubAccountName"] = book.projects.get(part.project_id, part.project_id)
    if part.component == Component.REVIEW:
        row["x_ReviewFee"] = Decimal(part.amount_nano).scaleb(-9)
    if part.unit_price is None:
        return row | plain("Adjustment", name_of(part.component, part.detail), part.amount_nano)
    row |= plain("Usage", name_of(part.component, part.detail), part.amount_nano)
    price = Decimal(part.unit_price)
    listed = _list_price(book, part)
    row |= priced(
        part.component,
        part.unit,
        part.quantity,
        listed=price if listed is None else listed,
        contracted=price,
    )
    row["SkuPriceId"] = "/".join(
        filter(None, (part.tariff_version_id, part.component, part.detail))
    )
    if part.component == Component.OUTPUT and "/" in part.detail:
        state, tier = part.detail.split("/")
        row["x_SemanticUnitState"], row["x_ConfidenceTier"] = state, tier
        row["SkuPriceDetails"] = {"x_SemanticUnitState": state, "x_ConfidenceTier": tier}
    return row


def _list_price(book: Book, part: Part) -> Decimal | None:
    """What the line costs whoever has no prices of its own; null where it is the same tariff."""
    base = _base(book, part.tariff_version_id)
    return None if base is None else list_prices.unit_price(base, part.component, part.detail)


def _list_period_price(book: Book, line: Mapping[Any, Any]) -> Decimal | None:
    """The same of a price of the month."""
    version_id = line["tariff_version_id"]
    base = _base(book, version_id)
    if base is None:
        return None
    own = catalogue.version(book.connection, version_id).document
    return list_prices.period_price(base, own, line["component"], line["detail"])


def _base(book: Book, version_id: str | None) -> Tariff | None:
    """The tariff that a customer's own version was made from; null of any other."""
    if version_id is None:
        return None
    if version_id not in book.bases:
        base = catalogue.version(book.connection, version_id).document.base
        book.bases[version_id] = (
            None if base is None else catalogue.version(book.connection, base).document
        )
    return book.bases[version_id]
