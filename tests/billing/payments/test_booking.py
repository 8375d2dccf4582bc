"""Two payments of one top-up, two refunds of one id, and what nobody here has asked for: what of it
is booked, by itself or on a person's word.
"""

from __future__ import annotations

import pytest
from invoice_world import Month
from stripe_invoices import compared
from stripe_payments import book, bought, credit, deliver, push
from stripe_process import StripeProcess

from billing.errors import PaymentConflict
from billing.payments import top_ups
from metering.database import transaction


@pytest.fixture
def second(month: Month, stripe: StripeProcess) -> str:
    """The second one's id at Stripe; the first one is booked."""
    bought(month, stripe)
    deliver(month, stripe)
    first = stripe.one("payment_intent")
    body = {"customer": first["customer"], "amount": 2000, "currency": "usd", "description": "x"}
    made = stripe.provider.do("recharge", first["metadata"]["dflash_id"], body, "another key")
    assert deliver(month, stripe)[-1] == "of a top-up that another payment has paid"
    assert credit(month) == 2000
    return made


def test_a_second_payment_of_a_top_up_is_named_and_booked_as_one_of_its_own(
    month: Month, stripe: StripeProcess, second: str
) -> None:
    (difference,) = compared(month, stripe).differences
    assert difference.check == "a top-up is paid once"
    assert second in difference.subject
    assert (difference.expected, difference.actual) == ("2000", "0")
    book(month, stripe, "payment", second)
    assert credit(month) == 4000
    assert compared(month, stripe).differences == []


def test_a_second_payment_that_is_refunded_takes_nothing_that_the_first_one_bought(
    month: Month, stripe: StripeProcess, second: str
) -> None:
    stripe.act("refund", payment_intent=second, amount=2000)
    assert deliver(month, stripe)[-1] == "of a top-up that another payment has paid"
    assert credit(month) == 2000
    assert compared(month, stripe).differences == []


def test_two_refunds_under_one_id_of_ours_are_two(month: Month, stripe: StripeProcess) -> None:
    top_up, intent = bought(month, stripe)
    deliver(month, stripe)
    with transaction(month.database) as connection:
        assert top_ups.refund(connection, top_up, 700, "ticket-1")
    push(month, stripe)
    body = {"intent": intent, "amount": 700}
    again = stripe.provider.do("refund", f"{top_up}/ticket-1", body, "another key")
    (difference,) = compared(month, stripe).differences
    assert difference.subject == f"ten_1 {again}"
    deliver(month, stripe)
    assert credit(month) == 600
    assert compared(month, stripe).differences == []


def test_what_is_nobodys_here_is_not_booked(month: Month, stripe: StripeProcess) -> None:
    _, intent = bought(month, stripe)
    stripe.act("change", id=intent, fields={"metadata": {"dflash_id": "top_of_nobody"}})
    stripe.act("change", id=stripe.one("customer")["id"], fields={"metadata": {}})
    with pytest.raises(PaymentConflict, match="no tenant"):
        book(month, stripe, "payment", intent)
    stripe.act(
        "change", id=stripe.one("customer")["id"], fields={"metadata": {"dflash_id": "ten_1"}}
    )
    stripe.act("change", id=intent, fields={"currency": "eur"})
    with pytest.raises(PaymentConflict, match="EUR"):
        book(month, stripe, "payment", intent)
    stripe.act("change", id=intent, fields={"metadata": {}})
    assert book(month, stripe, "payment", intent) == "not ours"
    assert credit(month) == 0


@pytest.mark.parametrize("mark", ["", "x" * 101, "x" * 500, "top_\0"])
def test_a_refund_whose_mark_cannot_be_ours_is_one_that_somebody_made_there(
    month: Month, stripe: StripeProcess, mark: str
) -> None:
    _, intent = bought(month, stripe)
    deliver(month, stripe)
    refund = stripe.act("refund", payment_intent=intent, amount=500)
    stripe.act("change", id=refund, fields={"metadata": {"dflash_id": mark}})
    assert "refunded" in deliver(month, stripe)
    assert credit(month) == 1500
    assert compared(month, stripe).differences == []
