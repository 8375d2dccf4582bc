"""Webhooks: verified, once each, in any order; and what they tell of top-ups and disputes."""

from __future__ import annotations

import random
from typing import Any

import pytest
from billing_world import balances, books_balance
from invoice_world import Month, at
from sqlalchemy import Connection, func, select
from stripe_process import StripeProcess

from billing.errors import (
    InvalidWebhook,
    PaymentConflict,
    PaymentsDisabled,
    ProviderFailed,
)
from billing.invoices import closing, issuing
from billing.payments import collection, outbox, top_ups, webhooks
from billing.payments.tables import payment_webhooks
from billing.payments.tables import top_ups as top_ups_table
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


def test_the_same_reference_opens_the_same_page(month: Month, stripe: StripeProcess) -> None:
    stripe.act("faults", faults=["", "drop after"])
    with pytest.raises(ProviderFailed):
        begin(month, stripe, 2000)
    first = begin(month, stripe, 2000)
    assert begin(month, stripe, 2000) == first
    assert first.url == stripe.one("checkout.session")["url"]
    with pytest.raises(PaymentConflict):
        begin(month, stripe, 2001)


def test_a_page_that_nobody_paid_grants_nothing(month: Month, stripe: StripeProcess) -> None:
    begin(month, stripe, 2000)
    stripe.act("expire", session=stripe.one("checkout.session")["id"])
    assert deliver(month, stripe) == ["failed"]
    assert credit(month) == 0


def test_a_refund_takes_credit_and_its_webhook_takes_no_more(
    month: Month, stripe: StripeProcess
) -> None:
    top_up, _ = bought(month, stripe)
    deliver(month, stripe)
    for _ in range(2):
        with transaction(month.database) as connection:
            top_ups.refund(connection, top_up, 700, "ticket-1")
        outbox.push(month.database, stripe.provider)
        deliver(month, stripe)
    assert credit(month) == 1300
    assert stripe.one("refund")["amount"] == 700
    with pytest.raises(PaymentConflict), transaction(month.database) as connection:
        top_ups.refund(connection, top_up, 2001, "ticket-2")


def test_credit_that_was_spent_is_not_refunded_but_lost_in_a_dispute(
    month: Month, stripe: StripeProcess
) -> None:
    top_up, intent = bought(month, stripe)
    deliver(month, stripe)
    for number in range(5):  # 1,020 of credit, and 4 a million tokens
        month.serve(f"req_{number}", ended_us=month.now_us, tokens=50_950_000)
    with pytest.raises(PaymentConflict), transaction(month.database) as connection:
        top_ups.refund(connection, top_up, 2000, "ticket-1")
    stripe.act("dispute", intent=intent)
    deliver(month, stripe)
    books = ledger(month)
    assert "tenant_credit" not in books
    assert books["write_off"] < 0


def test_what_a_dispute_that_is_won_gives_back_is_what_it_took(
    month: Month, stripe: StripeProcess
) -> None:
    _, intent = bought(month, stripe)
    deliver(month, stripe)
    for number in range(5):  # all but 1.00 of what there was
        month.serve(f"req_{number}", ended_us=month.now_us, tokens=50_950_000)
    before = ledger(month)
    dispute = stripe.act("dispute", intent=intent)
    deliver(month, stripe)
    assert ledger(month) != before
    stripe.act("end_dispute", dispute=dispute, status="won")
    deliver(month, stripe)
    assert ledger(month) == before


def test_what_was_paid_for_a_void_invoice_is_refunded_from_credit(
    month: Month, stripe: StripeProcess
) -> None:
    invoice_id, theirs = pushed(month, stripe)
    with transaction(month.database) as connection:
        issuing.void(connection, invoice_id)
    before = credit(month)
    intent = stripe.act("pay", invoice=theirs)
    deliver(month, stripe)
    stripe.act("refund", payment_intent=intent, amount=400)
    deliver(month, stripe)
    assert credit(month) == before


def test_refunds_of_a_top_up_never_pass_what_it_paid(month: Month, stripe: StripeProcess) -> None:
    top_up, _ = bought(month, stripe)  # beside 1,000 of other credit
    deliver(month, stripe)
    with transaction(month.database) as connection:
        top_ups.refund(connection, top_up, 1500, "ticket-1")
    with pytest.raises(PaymentConflict), transaction(month.database) as connection:
        top_ups.refund(connection, top_up, 501, "ticket-2")
    with pytest.raises(PaymentConflict), transaction(month.database) as connection:
        top_ups.refund(connection, top_up, 400, "ticket-1")
    with transaction(month.database) as connection:
        top_ups.refund(connection, top_up, 500, "ticket-3")
    outbox.push(month.database, stripe.provider)
    deliver(month, stripe)
    assert credit(month) == 0
    with snapshot(month.database) as connection:
        assert outbox.open_rows(connection) == []


def test_credit_recharges_itself_once_and_stops_when_the_card_fails(
    month: Month, stripe: StripeProcess
) -> None:
    with transaction(month.database) as connection:
        top_ups.set_recharge(connection, "ten_1", below_nano=2000 * 10**9, amount_minor=150_000)
    outbox.push(month.database, stripe.provider)
    stripe.act("card", customer=stripe.one("customer")["id"])
    assert [top_ups.recharge(month.database) for _ in range(2)] == [1, 0]
    stripe.act("faults", faults=["drop after"])
    outbox.push(month.database, stripe.provider)
    month.now_us += 60 * 10**6
    outbox.push(month.database, stripe.provider)
    assert stripe.counts()["payment_intent"] == 1
    deliver(month, stripe)
    assert credit(month) == 150_000
    assert top_ups.recharge(month.database) == 0
    with transaction(month.database) as connection:
        top_ups.set_recharge(connection, "ten_1", below_nano=9000 * 10**9, amount_minor=150_000)
    stripe.act("decline", decline=True)
    assert top_ups.recharge(month.database) == 1
    outbox.push(month.database, stripe.provider)
    deliver(month, stripe)
    assert credit(month) == 150_000
    assert top_ups.recharge(month.database) == 0
    with snapshot(month.database) as connection:
        states = connection.scalars(
            select(top_ups_table.c.state).order_by(top_ups_table.c.created_at_us)
        )
        assert list(states) == ["paid", "failed"]


def test_a_recharge_takes_the_card_kept_last_and_without_one_it_stops(
    month: Month, stripe: StripeProcess
) -> None:
    def recharge() -> None:
        with transaction(month.database) as connection:
            top_ups.set_recharge(connection, "ten_1", below_nano=10**13, amount_minor=1000)
        assert top_ups.recharge(month.database) == 1
        outbox.push(month.database, stripe.provider)

    recharge()
    with snapshot(month.database) as connection:
        assert "no card is kept" in (outbox.open_rows(connection)[0].error or "")
        assert collection.account(connection, "ten_1").recharge_failed
    bought(month, stripe)
    deliver(month, stripe)
    recharge()
    deliver(month, stripe)
    assert credit(month) == 2000 + 1000


def test_a_tenant_that_pays_otherwise_buys_nothing_here(
    month: Month, stripe: StripeProcess
) -> None:
    with pytest.raises(PaymentsDisabled), transaction(month.database) as connection:
        top_ups.set_recharge(connection, "ten_none", below_nano=1, amount_minor=1)
    for currency in ("KWD", "MGA"):  # three decimals in tens only; none, where ISO has two
        with pytest.raises(PaymentConflict), transaction(month.database) as connection:
            collection.enrol(connection, "ten_1", "a@b.example", currency)
    assert stripe.events() == []
