"""Webhooks: verified, once each, in any order; and what they tell of invoices and disputes."""

from __future__ import annotations

import random

import pytest
from invoice_world import Month
from sqlalchemy import func, select
from stripe_payments import bought, credit, deliver, ledger, pushed, receive
from stripe_process import StripeProcess

from billing.errors import (
    InvalidWebhook,
    ProviderFailed,
)
from billing.invoices import issuing
from billing.payments import collection, top_ups, webhooks
from billing.payments.tables import payment_webhooks
from metering.database import snapshot, transaction


def test_a_paid_invoice_is_paid_here_and_every_event_counts_once(
    month: Month, stripe: StripeProcess
) -> None:
    invoice_id, theirs = pushed(month, stripe)
    stripe.act("pay", invoice=theirs)
    assert deliver(month, stripe) == ["paid", "paid before"]  # of how it stands, not of the event
    before = ledger(month)
    assert deliver(month, stripe) == ["paid", "paid before"]
    assert ledger(month) == before
    found = month.invoice(invoice_id)
    assert (found.row.state, found.remaining_minor) == ("paid", 0)
    assert [(paid.amount_minor, paid.method) for paid in found.payments] == [(400, "stripe")]


def test_a_webhook_that_nobody_signed_or_signed_too_long_ago_is_refused(
    month: Month, stripe: StripeProcess
) -> None:
    _, theirs = pushed(month, stripe)
    stripe.act("pay", invoice=theirs)
    payload, signature = stripe.events()[-1]
    for forged, seal in (
        (payload.replace(b"paid", b"void"), signature),
        (payload, signature[:-1] + ("0" if signature[-1] != "0" else "1")),
        (payload, ""),
        (b"", signature),
    ):
        with pytest.raises(InvalidWebhook):
            receive(month, stripe, forged, seal)
    stripe.act("clock", advance_s=-301)
    old = stripe.events()[-1]
    with pytest.raises(InvalidWebhook):
        receive(month, stripe, *old)
    stripe.act("clock", advance_s=301)
    assert receive(month, stripe, payload, signature) == "paid"


def test_events_that_come_twice_and_in_any_order_leave_the_same_state(
    month: Month, stripe: StripeProcess
) -> None:
    """Top-up, its dispute won, a refund of ours, an invoice failed, then paid: shuffled."""
    top_up, intent = bought(month, stripe)
    _, theirs = pushed(month, stripe)
    dispute = stripe.act("dispute", intent=intent)
    stripe.act("end_dispute", dispute=dispute, status="won")
    stripe.act("refund", payment_intent=intent, amount=500)
    stripe.act("fail_payment", invoice=theirs)
    stripe.act("pay", invoice=theirs)
    events = stripe.events() * 2
    random.Random(7).shuffle(events)
    for event in events:
        receive(month, stripe, *event)
    books = ledger(month)
    assert "receivable" not in books
    assert credit(month) == 2000 - 500
    with snapshot(month.database) as connection:
        count = connection.scalar(select(func.count()).select_from(payment_webhooks))
        assert count == len(events) // 2
        found = collection.account(connection, "ten_1")
        assert found is not None
        assert found.past_due_since_us is None
        paid = top_ups.find(connection, top_up)
        assert paid is not None
        assert paid.state == "paid"


def test_an_event_is_stored_only_with_its_effect(
    month: Month, stripe: StripeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    bought(month, stripe)
    events = stripe.events()

    def crash(*_: object, **__: object) -> bool:
        raise RuntimeError("the process dies before its commit")

    with monkeypatch.context() as patch:
        patch.setattr(top_ups, "take_in", crash)
        for event in events:
            with pytest.raises(RuntimeError):
                receive(month, stripe, *event)
    assert credit(month) == 0
    assert [receive(month, stripe, *event) for event in events] == ["credited", "credited before"]
    assert credit(month) == 2000


def test_a_webhook_is_answered_later_when_stripe_cannot_be_asked(
    month: Month, stripe: StripeProcess
) -> None:
    bought(month, stripe)
    (first, *_) = stripe.events()
    provider = type(stripe.provider)(
        "sk_test_x", webhook_secrets=["whsec_test"], api_base="http://127.0.0.1:9"
    )
    with pytest.raises(ProviderFailed):
        webhooks.receive(month.database, provider, *first)
    assert receive(month, stripe, *first) == "credited"


def test_a_failed_payment_makes_a_tenant_past_due_until_it_pays(
    month: Month, stripe: StripeProcess
) -> None:
    _, theirs = pushed(month, stripe)
    stripe.act("fail_payment", invoice=theirs)
    assert deliver(month, stripe)[-1] == "payment failed"
    with snapshot(month.database) as connection:
        assert collection.account(connection, "ten_1").past_due_since_us == month.now_us
    stripe.act("pay", invoice=theirs)
    deliver(month, stripe)
    with snapshot(month.database) as connection:
        assert collection.account(connection, "ten_1").past_due_since_us is None


def test_a_lost_dispute_opens_the_invoice_again(month: Month, stripe: StripeProcess) -> None:
    invoice_id, theirs = pushed(month, stripe)
    intent = stripe.act("pay", invoice=theirs)
    dispute = stripe.act("dispute", intent=intent)
    # The dispute's event comes before that of the payment.
    for event in reversed(stripe.events()):
        receive(month, stripe, *event)
    assert month.invoice(invoice_id).remaining_minor == 400
    stripe.act("end_dispute", dispute=dispute, status="lost")
    deliver(month, stripe)
    assert month.invoice(invoice_id).remaining_minor == 400
    assert ledger(month)["receivable"] == -4 * 10**9


@pytest.mark.parametrize("what", ["top-up", "invoice"])
def test_an_inquiry_takes_nothing_until_it_becomes_a_dispute(
    month: Month, stripe: StripeProcess, what: str
) -> None:
    """Stripe keeps one object for both, so that its id is the same."""
    invoice_id, theirs = pushed(month, stripe)
    intent = stripe.act("pay", invoice=theirs)
    if what == "top-up":
        _, intent = bought(month, stripe)
    deliver(month, stripe)
    before = ledger(month)
    dispute = stripe.act("dispute", intent=intent)
    for status in ("warning_needs_response", "warning_under_review", "warning_closed", "prevented"):
        stripe.act("end_dispute", dispute=dispute, status=status)
        deliver(month, stripe)
        assert ledger(month) == before
    for status in ("needs_response", "lost"):
        stripe.act("end_dispute", dispute=dispute, status=status)
        deliver(month, stripe)
    taken = {"top-up": ("tenant_credit", 20), "invoice": ("receivable", 4)}
    account, amount = taken[what]
    assert ledger(month)[account] == before.get(account, 0) - amount * 10**9
    assert month.invoice(invoice_id).row.state == ("paid" if what == "top-up" else "final")


@pytest.mark.parametrize("ends", ["won", "lost"])
def test_what_was_refunded_and_is_disputed_too_is_lost_until_that_is_won(
    month: Month, stripe: StripeProcess, ends: str
) -> None:
    """Stripe takes the money twice, and the customer owes it once."""
    invoice_id, theirs = pushed(month, stripe)
    intent = stripe.act("pay", invoice=theirs)
    stripe.act("refund", payment_intent=intent, amount=300)
    deliver(month, stripe)
    before = ledger(month)
    dispute = stripe.act("dispute", intent=intent)
    deliver(month, stripe)
    books = ledger(month)
    assert (books["receivable"], books["write_off"]) == (-4 * 10**9, -3 * 10**9)
    assert month.invoice(invoice_id).remaining_minor == 400
    stripe.act("end_dispute", dispute=dispute, status=ends)
    deliver(month, stripe)
    deliver(month, stripe)
    assert ledger(month) == (before if ends == "won" else books)


def test_what_was_paid_for_a_void_invoice_is_kept_as_credit(
    month: Month, stripe: StripeProcess
) -> None:
    invoice_id, theirs = pushed(month, stripe)
    with transaction(month.database) as connection:
        issuing.void(connection, invoice_id)
    stripe.act("pay", invoice=theirs)
    before = credit(month)
    deliver(month, stripe)
    assert credit(month) - before == 400
    assert month.invoice(invoice_id).row.state == "void"
