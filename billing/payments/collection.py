"""Which tenants pay through the provider, and what of their invoices is pushed to it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select, update

from billing.errors import PaymentConflict
from billing.invoices import parties, queries, wording
from billing.invoices.queries import Invoice
from billing.payments import outbox
from billing.payments.tables import payment_accounts
from billing.rows import insert_once

DAY_US = 86_400 * 10**6
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
    for number, (description, amount) in enumerate(_items(found)):
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


def withdraw(connection: Connection, invoice_id: str) -> bool:
    """Queue the voiding of an invoice that was queued before; false where it was not."""
    found = queries.invoice(connection, invoice_id)
    if not outbox.is_queued(connection, "invoice", invoice_id):
        return False
    invoice = {"object": "invoice", "of": invoice_id}
    return outbox.enqueue(connection, found.row.tenant_id, "void", invoice_id, {"invoice": invoice})


def note_past_due(connection: Connection, tenant_id: str, since_us: int | None) -> None:
    """Note since when a tenant's payments fail; null where none does any more."""
    current = payment_accounts.c.past_due_since_us
    query = update(payment_accounts).where(payment_accounts.c.tenant_id == tenant_id)
    if since_us is not None:
        query = query.where(current.is_(None))
    connection.execute(query.values(past_due_since_us=since_us))


def _items(invoice: Invoice) -> list[tuple[str, int]]:
    """The lines that the provider's invoice shows: they add up to what is due."""
    return [
        (wording.description(line, invoice), line.amount_minor)
        for line in invoice.lines
        if line.amount_minor
    ]
