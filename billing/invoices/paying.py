"""Payments of an invoice: taken in, taken back, and restored.

All of it works within the caller's transaction and under the tenant's lock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, insert, select

from billing.errors import InvoiceConflict
from billing.invoices import books, issuing
from billing.invoices.tables import invoice_payments
from billing.ledger import alerts, funding
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
    before = _noted(connection, row, cause_id)
    if before is not None:
        if before != amount_minor:
            raise InvoiceConflict(f"{cause_id} paid another amount before")
        return False
    if amount_minor <= 0:
        raise InvoiceConflict("a payment is above zero")
    # What a provider took in is ours to keep in any case: of a void invoice it goes into credit.
    if row["state"] == "draft" or (row["state"] == "void" and method == MANUAL):
        raise InvoiceConflict(f"a {row['state']} invoice takes no payment")
    _move(connection, row, amount_minor, method, cause_id)
    return True


def take_back(
    connection: Connection, invoice_id: str, amount_minor: int, *, method: str, cause_id: str
) -> bool:
    """Undo a payment, as a dispute does, once per cause: the invoice is open again, as far as no
    credit is left of it. What is taken beyond that is lost. Raises InvoiceNotFound.
    """
    row = issuing.locked(connection, invoice_id)
    if _noted(connection, row, cause_id) is not None:
        return False
    _move(connection, row, -amount_minor, method, cause_id)
    return True


def restore(
    connection: Connection, invoice_id: str, *, taken: str, method: str, cause_id: str
) -> bool:
    """Take in again what was taken back by the cause `taken`, once per cause.

    Raises InvoiceNotFound, or InvoiceConflict where nothing was taken back by it.
    """
    row = issuing.locked(connection, invoice_id)
    if _noted(connection, row, cause_id) is not None:
        return False
    amount = _noted(connection, row, taken)
    if amount is None or amount > 0:
        raise InvoiceConflict(f"{taken} took nothing back")
    _move(connection, row, -amount, method, cause_id)
    return True


def _payment_id(row: dict[str, Any], cause_id: str) -> str:
    return f"payment/{row['id']}/{cause_id}"


def _noted(connection: Connection, row: dict[str, Any], cause_id: str) -> int | None:
    """What a cause paid, or, negative, took back; null where it did neither."""
    amount: int | None = connection.scalar(
        select(invoice_payments.c.amount_minor).where(
            invoice_payments.c.id == _payment_id(row, cause_id)
        )
    )
    return amount


def _move(
    connection: Connection, row: dict[str, Any], amount_minor: int, method: str, cause_id: str
) -> None:
    """Book what came or went, note it, and bring the invoice into the state that follows."""
    payment_id, minor, now = _payment_id(row, cause_id), row["minor_nano"], clock.now_us()
    credit = lock_tenant(connection, row["tenant_id"], row["currency"])
    before = issuing.standing(connection, row["id"])
    after = before.after(
        amount_minor,
        due_minor=issuing.due_minor(connection, row),
        minor_nano=minor,
        free_nano=max(0, funding.plain_credit(connection, row["tenant_id"], credit)),
    )
    settled = after.settled_minor - before.settled_minor
    credited_nano = after.credited_nano - before.credited_nano
    given_up = row["state"] == "uncollectible"
    books.paid(
        connection,
        payment_id=payment_id,
        tenant_id=row["tenant_id"],
        currency=row["currency"],
        by_provider=method != MANUAL,
        settles=AccountKind.WRITE_OFF if given_up else AccountKind.RECEIVABLE,
        settled_nano=settled * minor,
        surplus_nano=credited_nano,
        lost_nano=after.lost_nano(minor) - before.lost_nano(minor),
        at_us=now,
    )
    connection.execute(
        insert(invoice_payments).values(
            id=payment_id,
            invoice_id=row["id"],
            amount_minor=amount_minor,
            settled_minor=settled,
            credited_nano=credited_nano,
            method=method,
            paid_at_us=now,
        )
    )
    alerts.balance(connection, row["tenant_id"])
    if settled < 0 and row["state"] == "paid":
        issuing.bring(connection, row, "final", f"/{payment_id}")
    issuing.settle_if_nothing_is_left(connection, row, f"/{payment_id}")
