"""Credit notes: taking back a part of a final invoice without editing it."""

from __future__ import annotations

from fractions import Fraction

import uuid_utils
from sqlalchemy import Connection, func, insert, select

from billing.errors import InvoiceConflict
from billing.invoices import books, issuing, numbers
from billing.invoices.minor_units import format_minor
from billing.invoices.tables import credit_notes
from billing.notices import NoticeType
from metering import clock


def credit(
    connection: Connection, invoice_id: str, amount_minor: int, *, reason: str, reference: str
) -> str:
    """Credit a part of an invoice, tax included, once per reference; the note's number.

    It first takes off what is still due; what was paid already goes into the tenant's credit.
    Tax is credited in proportion, so that notes for the whole invoice credit the whole tax. Raises
    InvoiceNotFound, or InvoiceConflict when more would be credited than the invoice's total.
    """
    row = issuing.locked(connection, invoice_id)
    note = credit_notes.c
    before = connection.execute(
        select(note.number, note.amount_minor).where(
            note.invoice_id == row["id"], note.reference == reference
        )
    ).one_or_none()
    if before is not None:
        if before.amount_minor != amount_minor:
            raise InvoiceConflict(f"{reference} credited another amount before")
        return str(before.number)
    if row["state"] not in ("final", "paid"):
        raise InvoiceConflict(f"a {row['state']} invoice has nothing to credit")
    credited = int(
        connection.scalar(
            select(func.coalesce(func.sum(note.amount_minor), 0)).where(
                note.invoice_id == row["id"]
            )
        )
        or 0
    )
    left = row["total_minor"] - credited
    if not 0 < amount_minor <= left:
        raise InvoiceConflict(f"{left} minor units of this invoice can still be credited")
    tax = _tax(row["tax_minor"], row["total_minor"], credited + amount_minor)
    tax -= _tax(row["tax_minor"], row["total_minor"], credited)
    forgiven = min(amount_minor, issuing.remaining(connection, row))
    note_id = f"crn_{uuid_utils.uuid7().hex}"
    number = numbers.take(connection, numbers.CREDIT_NOTES)
    now = clock.now_us()
    connection.execute(
        insert(credit_notes).values(
            id=note_id,
            invoice_id=row["id"],
            tenant_id=row["tenant_id"],
            reference=reference,
            number=number,
            reason=reason,
            net_minor=amount_minor - tax,
            tax_minor=tax,
            amount_minor=amount_minor,
            forgiven_minor=forgiven,
            issued_at_us=now,
        )
    )
    minor = row["minor_nano"]
    books.credited(
        connection,
        note_id=note_id,
        tenant_id=row["tenant_id"],
        currency=row["currency"],
        net_nano=(amount_minor - tax) * minor,
        tax_nano=tax * minor,
        forgiven_nano=forgiven * minor,
        at_us=now,
    )
    issuing.announce(
        connection,
        row["id"],
        NoticeType.INVOICE_CREDITED,
        cause=f"/{number}",
        credit_note=number,
        credited=format_minor(amount_minor, minor),
    )
    issuing.settle_if_nothing_is_left(connection, row, f"/{number}")
    return number


def _tax(tax_minor: int, total_minor: int, credited_minor: int) -> int:
    """The tax in the first so many minor units of an invoice."""
    return round(Fraction(tax_minor * credited_minor, total_minor))
