"""Invoices made final, taken back and given up.

draft -> final -> paid | void | uncollectible; an invoice with nothing due is paid when it is
final, and one that was given up may still be paid. All of it works within the caller's
transaction and under the tenant's lock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, bindparam, func, select, update

from billing import notices
from billing.errors import InvoiceConflict, InvoiceNotFound
from billing.invoices import books, closed_periods, draft_rows, numbers, overdue
from billing.invoices.drafting import Draft
from billing.invoices.minor_units import format_minor
from billing.invoices.standings import Standing
from billing.invoices.tables import credit_notes, invoice_lines, invoice_payments, invoices
from billing.ledger.accounts import lock_tenant
from billing.notices import NoticeType
from metering import clock
from metering.prepared import Prepared

DAY_US = 86_400 * 10**6
OPEN_STATES = ("final", "uncollectible")
_INVOICE = Prepared(select(invoices).where(invoices.c.id == bindparam("invoice_id")))
_CHANGE = Prepared(update(invoices).where(invoices.c.id == bindparam("of_invoice")))
_STANDING = Prepared(
    select(
        *(
            func.coalesce(func.sum(column), 0)
            for column in (
                invoice_payments.c.amount_minor,
                invoice_payments.c.settled_minor,
                invoice_payments.c.credited_nano,
            )
        )
    ).where(invoice_payments.c.invoice_id == bindparam("invoice_id"))
)
_FORGIVEN = Prepared(
    select(func.coalesce(func.sum(credit_notes.c.forgiven_minor), 0)).where(
        credit_notes.c.invoice_id == bindparam("invoice_id")
    )
)
_TOLD = {
    "paid": NoticeType.INVOICE_PAID,
    "final": NoticeType.INVOICE_REOPENED,
    "void": NoticeType.INVOICE_VOIDED,
}


def issue(connection: Connection, draft: Draft) -> str:
    """Make an invoice final: numbered, booked, unchangeable. Its id.

    Raises InvoiceConflict when the period has one of this kind.
    """
    draft_rows.discard(connection, draft)
    standing = connection.scalar(
        select(invoices.c.id).where(*draft_rows.same(draft), invoices.c.state != "void")
    )
    if standing is not None:
        raise InvoiceConflict(f"{draft.tenant_id} has an invoice of {draft.period.label}")
    invoice_id = draft_rows.insert(connection, draft)
    now = clock.now_us()
    settled = draft.due_minor == 0
    _CHANGE.run(
        connection,
        {
            "of_invoice": invoice_id,
            "state": "paid" if settled else "final",
            "number": numbers.take(connection, draft.issuer.series),
            "finalised_at_us": now,
            "due_at_us": now + draft.issuer.due_days * DAY_US,
            "resolved_at_us": now if settled else None,
        },
    )
    books.issued(connection, invoice_id, draft)
    told = [NoticeType.INVOICE_ISSUED, NoticeType.INVOICE_PAID][: 2 if settled else 1]
    announce(connection, invoice_id, *told)
    return invoice_id


def void(connection: Connection, invoice_id: str) -> bool:
    """Take a final invoice back, as if it had not been issued; its number stays used.

    Its period may be closed again, and what it billed of earlier ones is looked at again. False if
    it was void before. Raises InvoiceNotFound, or InvoiceConflict for one that was paid, in
    part, or credited.
    """
    row = locked(connection, invoice_id)
    if row["state"] == "void":
        return False
    if row["state"] != "final":
        raise InvoiceConflict(f"a {row['state']} invoice cannot be voided")
    if remaining(connection, row) != row["due_minor"]:
        raise InvoiceConflict("it was paid or credited in part: credit the rest instead")
    books.voided(connection, row["id"])
    bring(connection, row, "void")
    if row["kind"] == "period":
        closed_periods.reopen(connection, row["tenant_id"], row["period"])
    billed = connection.scalars(
        select(invoice_lines.c.period)
        .where(invoice_lines.c.invoice_id == row["id"])
        .group_by(invoice_lines.c.period)
    )
    for label in sorted(billed):
        closed_periods.look_again(connection, row["tenant_id"], label)
    return True


def give_up(connection: Connection, invoice_id: str) -> bool:
    """Write off what is left of a final invoice; false if that was done before.

    Raises InvoiceNotFound, or InvoiceConflict for an invoice that is not open.
    """
    row = locked(connection, invoice_id)
    if row["state"] == "uncollectible":
        return False
    if row["state"] != "final":
        raise InvoiceConflict(f"a {row['state']} invoice has nothing left to give up")
    left = remaining(connection, row)
    payments = select(func.count()).where(invoice_payments.c.invoice_id == row["id"])
    books.given_up(
        connection,
        invoice_id=row["id"],
        after=connection.scalar(payments) or 0,
        tenant_id=row["tenant_id"],
        currency=row["currency"],
        nano=left * row["minor_nano"],
        at_us=clock.now_us(),
    )
    bring(connection, row, "uncollectible")
    return True


def locked(connection: Connection, reference: str) -> dict[str, Any]:
    """An invoice by id or number, read under its tenant's lock; raises InvoiceNotFound."""
    query = select(invoices).where((invoices.c.id == reference) | (invoices.c.number == reference))
    found = connection.execute(query).mappings().one_or_none()
    if found is None:
        raise InvoiceNotFound(f"no invoice {reference}")
    lock_tenant(connection, found["tenant_id"], found["currency"])
    return dict(connection.execute(query).mappings().one())


def remaining(connection: Connection, row: dict[str, Any]) -> int:
    """What is still to be paid of an invoice, in minor units; never negative."""
    return due_minor(connection, row) - standing(connection, row["id"]).settled_minor


def due_minor(connection: Connection, row: dict[str, Any]) -> int:
    """What is due of an invoice, less what credit notes have taken off that."""
    if row["state"] in ("draft", "void"):
        return 0
    forgiven = _FORGIVEN.one(connection, {"invoice_id": row["id"]})[0]
    return int(row["due_minor"]) - int(forgiven)


def standing(connection: Connection, invoice_id: str) -> Standing:
    """What was paid for an invoice, and where that went."""
    return Standing(*map(int, _STANDING.one(connection, {"invoice_id": invoice_id})))


def announce(
    connection: Connection, invoice_id: str, *kinds: NoticeType, cause: str = "", **more: str
) -> bool:
    """Tell the tenant what became of an invoice, once per cause; whether all of it is news."""
    row = _INVOICE.one(connection, {"invoice_id": invoice_id})._asdict()
    minor = row["minor_nano"]
    data = {
        "invoice_id": invoice_id,
        "number": row["number"],
        "period": row["period"],
        "state": row["state"],
        "total": format_minor(row["total_minor"], minor),
        "due": format_minor(row["due_minor"], minor),
        "remaining": format_minor(remaining(connection, row), minor),
        "currency": row["currency"],
        **more,
    }
    news = [
        notices.announce(connection, row["tenant_id"], kind, f"{invoice_id}{cause}", data)
        for kind in kinds
    ]
    return all(news)


def settle_if_nothing_is_left(connection: Connection, row: dict[str, Any], cause: str) -> None:
    """Mark an open invoice paid once payments and credit notes cover it, `cause` being the last."""
    if row["state"] in OPEN_STATES and remaining(connection, row) == 0:
        bring(connection, row, "paid", cause)


def bring(connection: Connection, row: dict[str, Any], state: str, cause: str = "") -> None:
    """Bring an issued invoice into another state, and tell its tenant: it may be paid, opened again
    and paid again, each by a cause of its own.
    """
    resolved_at_us = None if state == "final" else clock.now_us()
    _CHANGE.run(
        connection, {"of_invoice": row["id"], "state": state, "resolved_at_us": resolved_at_us}
    )
    if (kind := _TOLD.get(state)) is not None:
        announce(connection, row["id"], kind, cause=cause)
    overdue.reconsider(connection, row["tenant_id"])
