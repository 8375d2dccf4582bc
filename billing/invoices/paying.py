"""Payments of an invoice: taken in, taken back, and restored.

All of it works within the caller's transaction and under the tenant's lock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select, update

from billing.errors import InvoiceConflict
from billing.invoices import books, issuing, overdue
from billing.invoices.tables import invoice_payments, invoices
from billing.ledger import funding
from billing.ledger.accounts import AccountKind, lock_tenant
from metering import clock

MANUAL = "manual"  # the method of payments that came outside a provider


def pay(
    connection: Connection, invoice_id: str, amount_minor: int, *, method: str, cause_id: str
) -> bool:
    """Take a payment in, once per cause; false if it was taken before.

    What is paid beyond the invoice goes into the tenant's credit. Raises InvoiceNotFound, or
    InvoiceConflict for a draft, a void invoice, or a cause that came with another amount.
    """
    row = issuing.locked(connection, invoice_id)
    payment_id = _payment_id(row, cause_id)
    before = connection.scalar(
        select(invoice_payments.c.amount_minor).where(invoice_payments.c.id == payment_id)
    )
    if before is not None:
        if before != amount_minor:
            raise InvoiceConflict(f"{cause_id} paid another amount before")
        return False
    if amount_minor <= 0:
        raise InvoiceConflict("a payment is above zero")
    # What a provider took in is ours to keep in any case: of a void invoice it goes into credit.
    if row["state"] == "draft" or (row["state"] == "void" and method == MANUAL):
        raise InvoiceConflict(f"a {row['state']} invoice takes no payment")
    nano = amount_minor * row["minor_nano"]
    _take_in(connection, row, payment_id, method, nano=nano, noted_minor=amount_minor)
    return True


def restore(
    connection: Connection, invoice_id: str, *, taken: str, method: str, cause_id: str
) -> bool:
    """Take in again what was taken back by the cause `taken`, once per cause.

    It makes good what was lost of that, then settles what is left of the invoice; the rest goes
    into the tenant's credit. Raises InvoiceNotFound.
    """
    row = issuing.locked(connection, invoice_id)
    payment_id, taken_id = _payment_id(row, cause_id), _payment_id(row, taken)
    if books.is_booked(connection, payment_id):
        return False
    total, lost = books.moved(connection, taken_id)
    noted = connection.scalar(
        select(invoice_payments.c.amount_minor).where(invoice_payments.c.id == taken_id)
    )
    _take_in(
        connection,
        row,
        payment_id,
        method,
        nano=total - lost,
        noted_minor=-(noted or 0),
        lost_nano=-lost,
    )
    return True


def take_back(
    connection: Connection, invoice_id: str, amount_minor: int, *, method: str, cause_id: str
) -> bool:
    """Undo a payment, as a lost dispute does, once per cause: the invoice is open again.

    What is taken beyond all that was paid, as of a payment that was refunded before, is lost.
    Raises InvoiceNotFound.
    """
    row = issuing.locked(connection, invoice_id)
    payment_id = _payment_id(row, cause_id)
    if books.is_booked(connection, payment_id):
        return False
    taken = min(amount_minor, max(0, issuing.paid_minor(connection, row["id"])))
    minor = row["minor_nano"]
    surplus = min(taken, _surplus(connection, row))
    credit = lock_tenant(connection, row["tenant_id"], row["currency"])
    available = max(0, funding.plain_credit(connection, row["tenant_id"], credit))
    # What of the surplus was spent since is lost.
    lost = max(0, surplus * minor - available)
    _book(
        connection,
        row,
        payment_id,
        method,
        noted_minor=-taken,
        settled_nano=-(taken - surplus) * minor,
        surplus_nano=-(surplus * minor - lost),
        lost_nano=lost + (amount_minor - taken) * minor,
    )
    if surplus < taken and row["state"] == "paid":
        connection.execute(
            update(invoices)
            .where(invoices.c.id == row["id"])
            .values(state="final", resolved_at_us=None)
        )
        overdue.reconsider(connection, row["tenant_id"])
    return True


def _payment_id(row: dict[str, Any], cause_id: str) -> str:
    return f"payment/{row['id']}/{cause_id}"


def _surplus(connection: Connection, row: dict[str, Any]) -> int:
    """How much of the payments went into the tenant's credit: of a void invoice, all."""
    due = 0 if row["state"] == "void" else int(row["due_minor"])
    return max(0, issuing.covered_minor(connection, row["id"]) - due)


def _take_in(
    connection: Connection,
    row: dict[str, Any],
    payment_id: str,
    method: str,
    *,
    nano: int,
    noted_minor: int,
    lost_nano: int = 0,
) -> None:
    """Settle what is left of an invoice; the rest goes into the tenant's credit."""
    left = issuing.remaining(connection, row)
    settled = min(left, nano // row["minor_nano"])
    settled_nano = settled * row["minor_nano"]
    _book(
        connection,
        row,
        payment_id,
        method,
        noted_minor=noted_minor,
        settled_nano=settled_nano,
        surplus_nano=nano - settled_nano,
        lost_nano=lost_nano,
    )
    if row["state"] in issuing.OPEN_STATES and settled == left:
        issuing.resolve(connection, row, "paid")


def _book(
    connection: Connection,
    row: dict[str, Any],
    payment_id: str,
    method: str,
    *,
    noted_minor: int,
    settled_nano: int,
    surplus_nano: int,
    lost_nano: int,
) -> None:
    """Book a payment, and note it where it changes what was paid of the invoice."""
    given_up = row["state"] == "uncollectible"
    now = clock.now_us()
    books.paid(
        connection,
        payment_id=payment_id,
        tenant_id=row["tenant_id"],
        currency=row["currency"],
        by_provider=method != MANUAL,
        settles=AccountKind.WRITE_OFF if given_up else AccountKind.RECEIVABLE,
        settled_nano=settled_nano,
        surplus_nano=surplus_nano,
        lost_nano=lost_nano,
        at_us=now,
    )
    if noted_minor:
        connection.execute(
            insert(invoice_payments).values(
                id=payment_id,
                invoice_id=row["id"],
                amount_minor=noted_minor,
                method=method,
                paid_at_us=now,
            )
        )
