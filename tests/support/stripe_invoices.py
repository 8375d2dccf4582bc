"""An invoice that Stripe is told of, and what Stripe has of it."""

from __future__ import annotations

from typing import Any

from invoice_world import Month, at
from sqlalchemy import Connection
from stripe_process import StripeProcess

from billing.invoices import closing
from billing.payments import collection, comparison, outbox, webhooks
from billing.payments.comparison import Comparison

DUE = 400


def issued(month: Month, *, is_told: bool = True) -> str:
    """An invoice over 4.00, all of it due and queued."""
    when = at("2026-11-10 12:00")
    charged = month.serve("req_1", ended_us=when, tokens=999_995)
    month.on_account("req_1", "ten_1", charged, at_us=when)
    month.now_us = at("2026-12-04 00:00")

    def queue(connection: Connection, invoice_id: str) -> None:
        if is_told:
            collection.collect(connection, invoice_id)

    (closed,) = closing.close(month.database, "2026-11", witness=queue)
    assert closed.invoice_id is not None
    return closed.invoice_id


def pushed(month: Month, stripe: StripeProcess) -> tuple[str, str]:
    """The same, and Stripe has it: our id, and its."""
    invoice_id = issued(month)
    outbox.push(month.database, stripe.provider)
    return invoice_id, stripe.one("invoice")["id"]


def compared(month: Month, stripe: StripeProcess, **scope: Any) -> Comparison:
    return comparison.compare(month.database, stripe.provider, **scope)


def named(found: Comparison) -> set[str]:
    return {difference.check for difference in found.differences}


def deliver(month: Month, stripe: StripeProcess) -> None:
    for event in stripe.events():
        webhooks.receive(month.database, stripe.provider, *event)
