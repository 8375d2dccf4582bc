"""What moved at the provider and is not in our books, taken in when a person says so.

It does what the object's webhook would have done, as the object stands now. Money that bears our
mark and pays no top-up that is open here (it was bought after the backup that these books were
restored from, or the top-up had been paid already) becomes a top-up of its own.
"""

from __future__ import annotations

from sqlalchemy import Connection, Engine

from billing.errors import PaymentConflict
from billing.ledger.accounts import lock_tenant
from billing.ledger.balances import currency_of
from billing.payments import outbox, top_ups, webhooks
from billing.payments.provider import PaymentState, Provider, asking
from billing.payments.webhooks import Effect

# What can be booked, and the kind of object that the provider calls it.
KINDS = {
    "payment": "payment_intent",
    "invoice": "invoice",
    "refund": "refund",
    "dispute": "dispute",
}


def looked_up(database: Engine, provider: Provider, kind: str, provider_id: str) -> Effect:
    """Ask how one object stands, and what booking it does here; again, it changes nothing.

    Raises ProviderFailed or ProviderRefused; the effect raises PaymentConflict for a payment that
    is nobody's here.
    """
    effect = webhooks.effect_of(database, provider, KINDS[kind], provider_id)
    if kind != "payment":
        return effect
    with asking():
        found = provider.intent(provider_id)
        customer = None if found.customer_id is None else provider.customer(found.customer_id)
    owner = None if customer is None else customer.subject

    def book(connection: Connection) -> str:
        outcome = effect(connection)
        if found.status == "paid" and outcome in (webhooks.UNKNOWN, webhooks.SECOND):
            return _of_its_own(connection, found, owner)
        return outcome

    return book


def _of_its_own(connection: Connection, found: PaymentState, tenant_id: str | None) -> str:
    """Grant a payment as a top-up that nobody knew of."""
    if tenant_id is None:
        raise PaymentConflict(f"{found.id} is of a customer that is no tenant of ours")
    currency = currency_of(connection, tenant_id)
    if currency.lower() != found.currency:
        raise PaymentConflict(f"{found.id} is in {found.currency.upper()}, not in {currency}")
    lock_tenant(connection, tenant_id, currency)
    made = top_ups.add(
        connection,
        tenant_id,
        found.id,
        kind="checkout",
        currency=currency,
        amount_minor=found.received_minor,
    )
    outbox.remember(connection, "intent", made.id, found.id)
    top_ups.received(connection, made.id, found.received_minor)
    return f"credited as {made.id}"
