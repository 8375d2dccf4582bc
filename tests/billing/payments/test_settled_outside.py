"""What became of an invoice here, not at Stripe: Stripe is told once, in order, and agrees."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from billing_world import balances
from invoice_world import Month
from stripe_invoices import DUE, compared, deliver, named, pushed
from stripe_process import StripeProcess

from billing.errors import InvoiceConflict
from billing.invoices import credit_notes, issuing, paying
from billing.payments import collection, outbox
from metering.database import snapshot, transaction

HOUR_US = 3600 * 10**6
FAULTS = ("429", "500", "500 after", "drop", "drop after")


def credit(month: Month, invoice_id: str, minor: int, reference: str = "r") -> None:
    """As the route and the command do."""
    with transaction(month.database) as connection:
        credit_notes.credit(connection, invoice_id, minor, reason="ours", reference=reference)
        collection.tell(connection, invoice_id)


def pay(month: Month, invoice_id: str, minor: int, cause: str = "wire") -> None:
    with transaction(month.database) as connection:
        paying.pay(connection, invoice_id, minor, method=paying.MANUAL, cause_id=cause)
        collection.tell(connection, invoice_id)


def give_up(month: Month, invoice_id: str) -> bool:
    with transaction(month.database) as connection:
        changed = issuing.give_up(connection, invoice_id)
        collection.tell(connection, invoice_id)
    return changed


def push(month: Month, stripe: StripeProcess) -> None:
    """Push until nothing waits, the hours between attempts passing."""
    for _ in range(20):
        outbox.push(month.database, stripe.provider)
        with snapshot(month.database) as connection:
            if not outbox.open_rows(connection):
                return
        month.now_us += HOUR_US
        stripe.act("clock", advance_s=3600)
    raise AssertionError("some row was never sent")


def agrees(month: Month, stripe: StripeProcess) -> None:
    """After every webhook, twice, both say the same and no credit came of it."""
    deliver(month, stripe)
    deliver(month, stripe)
    assert compared(month, stripe).differences == []


def test_an_invoice_paid_by_transfer_is_paid_at_stripe_without_money_of_stripes(
    month: Month, stripe: StripeProcess
) -> None:
    ours, _ = pushed(month, stripe)
    pay(month, ours, DUE)
    push(month, stripe)
    theirs = stripe.one("invoice")
    assert (theirs["status"], theirs["amount_remaining"]) == ("paid", 0)
    with snapshot(month.database) as connection:
        before = balances(connection)["tenant_credit"]
    agrees(month, stripe)
    with snapshot(month.database) as connection:
        assert balances(connection)["tenant_credit"] == before
        assert "payment_clearing" not in balances(connection, None)


def test_a_part_paid_by_transfer_waits_for_the_rest(month: Month, stripe: StripeProcess) -> None:
    ours, _ = pushed(month, stripe)
    pay(month, ours, 100)
    push(month, stripe)
    assert stripe.one("invoice")["status"] == "open"
    assert named(compared(month, stripe)) == {"invoice to collect = provider's"}
    pay(month, ours, DUE - 100, "wire-2")
    push(month, stripe)
    agrees(month, stripe)


def test_a_credit_note_takes_off_what_stripe_collects(month: Month, stripe: StripeProcess) -> None:
    ours, theirs = pushed(month, stripe)
    credit(month, ours, 150)
    credit(month, ours, 150)  # the same again
    push(month, stripe)
    assert stripe.one("credit_note")["amount"] == 150
    assert stripe.one("invoice")["amount_remaining"] == DUE - 150
    agrees(month, stripe)
    stripe.act("pay", invoice=theirs)
    agrees(month, stripe)
    assert month.invoice(ours).row.state == "paid"


@pytest.mark.parametrize("by", ["stripe", "transfer"])
def test_a_credit_note_after_the_payment_is_credit_outside_of_stripe(
    month: Month, stripe: StripeProcess, by: str
) -> None:
    ours, theirs = pushed(month, stripe)
    if by == "stripe":
        stripe.act("pay", invoice=theirs)
        deliver(month, stripe)
    else:
        pay(month, ours, DUE)
    credit(month, ours, 150)
    push(month, stripe)
    found = stripe.one("credit_note")
    assert (found["amount"], found["out_of_band_amount"]) == (150, 150)
    agrees(month, stripe)


@pytest.mark.parametrize("by", ["stripe", "transfer", "nobody"])
def test_an_invoice_given_up_is_given_up_there_and_may_still_be_paid(
    month: Month, stripe: StripeProcess, by: str
) -> None:
    ours, theirs = pushed(month, stripe)
    pay(month, ours, 100)
    stripe.act("fail_payment", invoice=theirs)
    assert give_up(month, ours)
    assert not give_up(month, ours)
    push(month, stripe)
    assert stripe.one("invoice")["status"] == "uncollectible"
    agrees(month, stripe)  # its echo, too
    assert month.invoice(ours).row.state == "uncollectible"
    with snapshot(month.database) as connection:
        assert balances(connection)["write_off"] == -(DUE - 100) * 10**7
        found = collection.account(connection, "ten_1")
        assert found is not None
        assert found.past_due_since_us is None
    if by == "stripe":
        stripe.act("pay", invoice=theirs)
    elif by == "transfer":
        pay(month, ours, DUE - 100, "wire-2")
        push(month, stripe)
    agrees(month, stripe)
    state = "uncollectible" if by == "nobody" else "paid"
    assert (month.invoice(ours).row.state, stripe.one("invoice")["status"]) == (state, state)
    with snapshot(month.database) as connection:
        assert ("write_off" in balances(connection)) is (by == "nobody")


def test_what_is_marked_uncollectible_there_is_given_up_here_and_not_told_back(
    month: Month, stripe: StripeProcess
) -> None:
    ours, theirs = pushed(month, stripe)
    stripe.provider.do("give_up", ours, {"invoice": theirs}, "by hand")
    agrees(month, stripe)
    assert month.invoice(ours).row.state == "uncollectible"
    assert outbox.push(month.database, stripe.provider) == 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_anywhere_has_one_effect_and_the_order_is_kept(
    month: Month, stripe: StripeProcess, fault: str
) -> None:
    """given a note, a transfer and a later note, when a request breaks, then each is done once."""
    ours, _ = pushed(month, stripe)
    stripe.act("clock", at_s=month.now_us / 10**6)
    credit(month, ours, 100)
    pay(month, ours, DUE - 100)
    credit(month, ours, 50, "later")
    stripe.act("faults", faults=[fault, "", fault, fault])
    push(month, stripe)
    assert [each["amount"] for each in stripe.objects("credit_note")] == [100, 50]
    assert stripe.counts()["invoice_payment"] == 1
    assert stripe.one("invoice")["amount_paid"] == DUE - 100
    agrees(month, stripe)


def paid_at_stripe_meanwhile(month: Month, stripe: StripeProcess, ours: str, theirs: str) -> None:
    stripe.act("pay", invoice=theirs)
    pay(month, ours, DUE)


def credited_there_by_hand(month: Month, stripe: StripeProcess, ours: str, theirs: str) -> None:
    body = {"invoice": theirs, "amount": 100, "outside": 0, "memo": "by hand"}
    stripe.provider.do("credit_note", "elsewhere", body, "a key")


@pytest.mark.parametrize(
    ("falsify", "checks"),
    [
        (paid_at_stripe_meanwhile, {"the provider takes what it is told"}),
        (
            credited_there_by_hand,
            {"invoice's credit notes = provider's", "invoice to collect = provider's"},
        ),
    ],
)
def test_what_was_done_twice_or_by_hand_is_named_and_holds_up_nothing(
    month: Month,
    stripe: StripeProcess,
    falsify: Callable[[Month, StripeProcess, str, str], None],
    checks: set[str],
) -> None:
    ours, theirs = pushed(month, stripe)
    falsify(month, stripe, ours, theirs)
    outbox.push(month.database, stripe.provider)
    assert checks <= named(compared(month, stripe))
    with transaction(month.database) as connection:
        outbox.enqueue(connection, "ten_1", "void", "another", {"invoice": theirs})
    outbox.push(month.database, stripe.provider)
    with snapshot(month.database) as connection:
        assert "waiting" not in {row.state for row in outbox.open_rows(connection)}


def test_no_more_is_told_than_stripe_was_ever_to_collect(
    month: Month, stripe: StripeProcess
) -> None:
    """The invoice is over more than what is due: its rest was paid from credit here."""
    ours, _ = pushed(month, stripe)
    total = month.invoice(ours).row.total_minor
    for number in itertools.count():
        try:
            credit(month, ours, max(1, total // 2), f"r{number}")
        except InvoiceConflict:
            break
    push(month, stripe)
    assert sum(each["amount"] for each in stripe.objects("credit_note")) == min(total, DUE)
    agrees(month, stripe)
