"""Which tenants pay through the provider, and what of their invoices is pushed to it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from billing.errors import PaymentConflict
from billing.invoices import issuing, parties, paying, queries, wording
from billing.invoices.queries import Invoice
from billing.invoices.tables import credit_notes, invoice_payments
from billing.payments import outbox
from billing.payments.tables import payment_accounts, payment_outbox
from billing.rows import insert_once

DAY_US = 86_400 * 10**6
ITEMS_MAX = 250  # what Stripe takes on one invoice
# Stripe takes these in other units than ISO 4217, or only in part.
UNSUPPORTED = frozenset(
    {"BHD", "CLF", "IQD", "ISK", "JOD", "KWD", "LYD", "MGA", "OMR", "TND", "UGX", "UYI", "UYW"}
)


@dataclass(frozen=True, slots=True)
class PaymentAccount:
    """A tenant that pays through the provider."""

    tenant_id: str
    email: str
    past_due_since_us: int | None
    recharge_below_nano: int | None
    recharge_minor: int | None
    recharge_failed: bool


def account(connection: Connection, tenant_id: str) -> PaymentAccount | None:
    """The tenant's account with the provider, or null: it pays otherwise."""
    row = connection.execute(
        select(payment_accounts).where(payment_accounts.c.tenant_id == tenant_id)
    ).one_or_none()
    return None if row is None else PaymentAccount(**row._mapping)


def enrol(connection: Connection, tenant_id: str, email: str, currency: str) -> bool:
    """Let a tenant pay through the provider from now on; false if it does already.

    Raises UnknownTenant, or PaymentConflict for a currency that the provider counts otherwise.
    """
    if currency in UNSUPPORTED:
        raise PaymentConflict(f"payments in {currency} are not supported")
    customer = parties.customer(connection, tenant_id)
    values = {"tenant_id": tenant_id, "email": email, "recharge_failed": False}
    if not insert_once(connection, payment_accounts, values):
        return False
    body = {"name": customer.name, "email": email}
    outbox.enqueue(connection, tenant_id, "customer", tenant_id, body)
    return True


def collect(connection: Connection, invoice_id: str) -> bool:
    """Queue a final invoice for the provider, in the transaction that made it final.

    False where nothing is due, or the tenant pays otherwise.
    """
    found = queries.invoice(connection, invoice_id)
    row = found.row
    if row.state != "final" or account(connection, row.tenant_id) is None:
        return False
    customer = {"object": "customer", "of": row.tenant_id}
    invoice = {"object": "invoice", "of": invoice_id}
    finalised, due = row.finalised_at_us or 0, row.due_at_us or 0
    queue = outbox.enqueue
    queue(
        connection,
        row.tenant_id,
        "invoice",
        invoice_id,
        {
            "customer": customer,
            "currency": row.currency.lower(),
            "days_until_due": max(1, (due - finalised) // DAY_US),
            "description": f"{wording.title(found)}, {wording.period(found)}",
        },
    )
    for number, (description, amount) in enumerate(items(found)):
        queue(
            connection,
            row.tenant_id,
            "item",
            f"{invoice_id}/{number}",
            {
                "customer": customer,
                "invoice": invoice,
                "currency": row.currency.lower(),
                "amount": amount,
                "description": description,
            },
        )
    return queue(connection, row.tenant_id, "finalise", invoice_id, {"invoice": invoice})


def tell(connection: Connection, invoice_id: str) -> None:
    """Queue what became of a pushed invoice here: voided, credited, paid outside, given up.

    To be called in the transaction that does it. What was told is not told again. The provider
    hears of no more credit than its invoice comes to, which is what is due here: the rest is of
    charges that credit had paid before.
    """
    if not outbox.is_queued(connection, "invoice", invoice_id):
        return
    row = issuing.locked(connection, invoice_id)
    invoice = {"object": "invoice", "of": invoice_id}
    about = {"invoice": invoice}
    if row["state"] == "void":
        outbox.enqueue(connection, row["tenant_id"], "void", invoice_id, about)
        return
    is_paid = is_paid_there(connection, invoice_id)
    left = int(row["due_minor"])
    for note in connection.execute(
        select(credit_notes)
        .where(credit_notes.c.invoice_id == invoice_id)
        .order_by(credit_notes.c.issued_at_us, credit_notes.c.id)
    ).all():
        amount = min(note.amount_minor, left)
        left -= amount
        subject = f"{invoice_id}/{note.number}"
        if not amount or outbox.is_queued(connection, "credit_note", subject):
            continue
        # There, a note first takes off what is still to pay; of what is paid it is said outside.
        outside = amount if is_paid else 0
        outbox.enqueue(
            connection,
            row["tenant_id"],
            "credit_note",
            subject,
            {"invoice": invoice, "amount": amount, "outside": outside, "memo": note.reason},
        )
    if is_paid or not left:
        return
    if row["state"] == "paid":
        outbox.enqueue(connection, row["tenant_id"], "paid_outside", invoice_id, about)
    elif row["state"] == "uncollectible":
        outbox.enqueue(connection, row["tenant_id"], "give_up", invoice_id, about)


def is_paid_there(connection: Connection, invoice_id: str) -> bool:
    """Whether the provider holds an invoice for paid: through it, or because it was told so."""
    through_it = connection.scalar(
        select(invoice_payments.c.id)
        .where(invoice_payments.c.invoice_id == invoice_id)
        .where(invoice_payments.c.method != paying.MANUAL)
        .limit(1)
    )
    return through_it is not None or outbox.is_queued(connection, "paid_outside", invoice_id)


def told_credit(connection: Connection, invoice_id: str) -> int:
    """How much of an invoice's credit notes the provider is told, in minor units."""
    rows = connection.execute(
        select(payment_outbox.c.body).where(
            payment_outbox.c.action == "credit_note",
            payment_outbox.c.dropped_at_us.is_(None),
            payment_outbox.c.subject.startswith(f"{invoice_id}/", autoescape=True),
        )
    )
    return sum(json.loads(row.body)["amount"] for row in rows)


def note_past_due(connection: Connection, tenant_id: str, since_us: int | None) -> None:
    """Note since when a tenant's payments fail; null where none does any more."""
    current = payment_accounts.c.past_due_since_us
    query = update(payment_accounts).where(payment_accounts.c.tenant_id == tenant_id)
    if since_us is not None:
        query = query.where(current.is_(None))
    connection.execute(query.values(past_due_since_us=since_us))


def stop_recharging(connection: Connection, tenant_id: str) -> None:
    """Buy no more credit by itself until that is set again: whoever owns the card said no."""
    connection.execute(
        update(payment_accounts)
        .where(payment_accounts.c.tenant_id == tenant_id)
        .values(recharge_failed=True)
    )


def items(invoice: Invoice) -> list[tuple[str, int]]:
    """The lines that the provider's invoice shows: they add up to what is due.

    What it has no room for is one line.
    """
    found = [
        (wording.description(line, invoice), line.amount_minor)
        for line in invoice.lines
        if line.amount_minor
    ]
    if len(found) <= ITEMS_MAX:
        return found
    shown, rest = found[: ITEMS_MAX - 1], found[ITEMS_MAX - 1 :]
    return [*shown, (f"{len(rest)} further lines", sum(amount for _, amount in rest))]
