"""Invoices as they are read: by pages, documents and the API. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, or_, select, tuple_

from billing import periods
from billing.errors import InvoiceNotFound
from billing.invoices import issuing
from billing.invoices.drafting import Draft
from billing.invoices.parties import Customer, Issuer
from billing.invoices.tables import credit_notes, invoice_lines, invoice_payments, invoices
from billing.ledger.balances import currency_of
from billing.money import plain


@dataclass(frozen=True, slots=True)
class Line:
    """One line as it stands on the invoice."""

    kind: str
    component: str
    detail: str
    quantity: str
    unit: str
    unit_price: str | None
    period: str
    amount_nano: int
    amount_minor: int


@dataclass(frozen=True, slots=True)
class Payment:
    """Money that came for an invoice; negative was taken back."""

    amount_minor: int
    method: str
    paid_at_us: int


@dataclass(frozen=True, slots=True)
class CreditNote:
    """What was taken back of an invoice."""

    number: str
    reason: str
    net_minor: int
    tax_minor: int
    amount_minor: int
    issued_at_us: int


@dataclass(frozen=True, slots=True)
class InvoiceRow:
    """An invoice in a list. A preview has no id; a draft no number and no dates."""

    id: str | None
    tenant_id: str
    number: str | None
    kind: str
    period: str
    start_us: int
    end_us: int
    time_zone: str
    state: str
    currency: str
    minor_nano: int
    subtotal_minor: int
    tax_minor: int
    total_minor: int
    credit_minor: int
    due_minor: int
    returned_nano: int
    created_at_us: int | None
    finalised_at_us: int | None
    due_at_us: int | None
    resolved_at_us: int | None


@dataclass(frozen=True, slots=True)
class Invoice:
    """An invoice with all that belongs to it."""

    row: InvoiceRow
    issuer: Issuer
    customer: Customer
    lines: tuple[Line, ...]
    payments: tuple[Payment, ...]
    credit_notes: tuple[CreditNote, ...]
    remaining_minor: int


def rows(
    connection: Connection,
    *,
    tenant_id: str | None = None,
    period: str | None = None,
    state: str | None = None,
    limit: int,
    cursor: tuple[int, str] | None = None,
) -> list[InvoiceRow]:
    """Invoices, newest first. `cursor` is the last row's `(created_at_us, id)`.

    Raises UnknownTenant or InvalidPeriod.
    """
    if tenant_id is not None:
        currency_of(connection, tenant_id)
    if period is not None:
        periods.month(period, "UTC")
    query = (
        select(*_columns())
        .order_by(invoices.c.created_at_us.desc(), invoices.c.id.desc())
        .limit(limit)
    )
    for column, wanted in (
        (invoices.c.tenant_id, tenant_id),
        (invoices.c.period, period),
        (invoices.c.state, state),
    ):
        if wanted is not None:
            query = query.where(column == wanted)
    if cursor is not None:
        query = query.where(tuple_(invoices.c.created_at_us, invoices.c.id) < cursor)
    return [InvoiceRow(**row) for row in connection.execute(query).mappings()]


def invoice(connection: Connection, reference: str, tenant_id: str | None = None) -> Invoice:
    """One invoice by id or number; raises InvoiceNotFound, also for another tenant's."""
    query = select(*_columns(), invoices.c.issuer, invoices.c.customer).where(
        or_(invoices.c.id == reference, invoices.c.number == reference)
    )
    if tenant_id is not None:
        query = query.where(invoices.c.tenant_id == tenant_id)
    found = connection.execute(query).mappings().one_or_none()
    if found is None:
        raise InvoiceNotFound(f"no invoice {reference}")
    values: dict[str, Any] = dict(found)
    issuer, customer = values.pop("issuer"), values.pop("customer")
    line, payment, note = invoice_lines.c, invoice_payments.c, credit_notes.c
    invoice_id = values["id"]
    return Invoice(
        row=InvoiceRow(**values),
        issuer=msgspec.json.decode(issuer, type=Issuer),
        customer=msgspec.json.decode(customer, type=Customer),
        lines=tuple(
            Line(*row)
            for row in connection.execute(
                select(*(getattr(line, name) for name in Line.__slots__))
                .where(line.invoice_id == invoice_id)
                .order_by(line.line)
            )
        ),
        payments=tuple(
            Payment(*row)
            for row in connection.execute(
                select(payment.amount_minor, payment.method, payment.paid_at_us)
                .where(payment.invoice_id == invoice_id)
                .order_by(payment.paid_at_us, payment.id)
            )
        ),
        credit_notes=tuple(
            CreditNote(*row)
            for row in connection.execute(
                select(*(getattr(note, name) for name in CreditNote.__slots__))
                .where(note.invoice_id == invoice_id)
                .order_by(note.number)
            )
        ),
        remaining_minor=issuing.remaining(connection, values),
    )


def of_draft(draft: Draft) -> Invoice:
    """A draft that was not stored, as an invoice to look at."""
    return Invoice(
        row=InvoiceRow(
            id=None,
            tenant_id=draft.tenant_id,
            number=None,
            kind=draft.kind,
            period=draft.period.label,
            start_us=draft.period.start_us,
            end_us=draft.period.end_us,
            time_zone=draft.period.time_zone,
            state="preview",
            currency=draft.currency,
            minor_nano=draft.minor_nano,
            subtotal_minor=draft.subtotal_minor,
            tax_minor=draft.tax_minor,
            total_minor=draft.total_minor,
            credit_minor=draft.credit_minor,
            due_minor=draft.due_minor,
            returned_nano=draft.returned_nano,
            created_at_us=None,
            finalised_at_us=None,
            due_at_us=None,
            resolved_at_us=None,
        ),
        issuer=draft.issuer,
        customer=draft.customer,
        lines=tuple(
            Line(
                line.kind,
                line.component,
                line.detail,
                plain(line.quantity),
                line.unit,
                line.unit_price,
                line.period,
                line.amount_nano,
                line.amount_minor,
            )
            for line in draft.lines
        ),
        payments=(),
        credit_notes=(),
        remaining_minor=0,
    )


def _columns() -> list[Any]:
    return [invoices.c[name] for name in InvoiceRow.__slots__]
