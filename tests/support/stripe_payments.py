"""What is paid through the fake Stripe: an invoice pushed, a top-up bought, events delivered."""

from __future__ import annotations

from typing import Any

from billing_world import balances, books_balance
from invoice_world import Month, at
from sqlalchemy import Connection
from stripe_process import StripeProcess

from billing.invoices import closing
from billing.payments import booking, collection, outbox, top_ups, webhooks
from metering.database import snapshot, transaction


def receive(month: Month, stripe: StripeProcess, payload: bytes, signature: str) -> str:
    return webhooks.receive(month.database, stripe.provider, payload, signature)


def deliver(month: Month, stripe: StripeProcess) -> list[str]:
    """Deliver every event so far, oldest first."""
    return [receive(month, stripe, *event) for event in stripe.events()]


def ledger(month: Month) -> dict[str, int]:
    month.check()
    with snapshot(month.database) as connection:
        books_balance(connection)
        return balances(connection)


def credit(month: Month) -> int:
    """The tenant's credit in cents, beyond what it began with."""
    return ledger(month)["tenant_credit"] // 10**7 - 100_000


def pushed(month: Month, stripe: StripeProcess) -> tuple[str, str]:
    """An invoice over 4.00 that Stripe has: our id, and its."""
    when = at("2026-11-10 12:00")
    charged = month.serve("req_1", ended_us=when, tokens=999_995)
    month.on_account("req_1", "ten_1", charged, at_us=when)
    month.now_us = at("2026-12-04 00:00")

    def queue(connection: Connection, invoice_id: str) -> None:
        collection.collect(connection, invoice_id)

    (closed,) = closing.close(month.database, "2026-11", witness=queue)
    outbox.push(month.database, stripe.provider)
    assert closed.invoice_id is not None
    return closed.invoice_id, stripe.one("invoice")["id"]


def bought(month: Month, stripe: StripeProcess, amount: int = 2000) -> tuple[str, str]:
    """A top-up that was paid on its page: its id, and the payment's."""
    made = begin(month, stripe, amount)
    return made.id, stripe.act("complete", session=stripe.one("checkout.session")["id"])


def begin(month: Month, stripe: StripeProcess, amount: int, reference: str = "r") -> Any:
    return top_ups.begin(
        month.database,
        stripe.provider,
        tenant_id="ten_1",
        amount_minor=amount,
        reference=reference,
        return_url="https://gateway.example/dashboard/statement",
    )


def push(month: Month, stripe: StripeProcess) -> None:
    """Push, until nothing waits."""
    outbox.push(month.database, stripe.provider)
    with snapshot(month.database) as connection:
        assert outbox.open_rows(connection) == []


def book(month: Month, stripe: StripeProcess, kind: str, provider_id: str) -> str:
    """Book what is at Stripe, as a person does; what came of it."""
    effect = booking.looked_up(month.database, stripe.provider, kind, provider_id)
    with transaction(month.database) as connection:
        return effect(connection)
