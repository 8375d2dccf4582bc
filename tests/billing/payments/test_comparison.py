"""What Stripe has beside what it was told: equal books are equal, and every difference is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner
from invoice_world import Month
from sqlalchemy import update
from stripe_invoices import DUE, compared, deliver, issued, named, pushed
from stripe_payments import book
from stripe_process import StripeProcess

from billing.invoices import issuing, paying
from billing.payments import comparison, outbox, top_ups
from billing.payments.tables import payment_outbox
from billing.reconciliation_cli import reconcile
from metering.cli_context import CliContext
from metering.database import transaction


def top_up(month: Month, stripe: StripeProcess) -> str:
    made = top_ups.begin(
        month.database,
        stripe.provider,
        tenant_id="ten_1",
        amount_minor=2000,
        reference="r",
        return_url="https://gateway.example/",
    )
    stripe.act("complete", session=stripe.one("checkout.session")["id"])
    return made.id


def test_equal_books_show_no_difference_from_the_push_to_the_payment(
    month: Month, stripe: StripeProcess
) -> None:
    _, theirs = pushed(month, stripe)
    found = compared(month, stripe)
    assert found.differences == []
    assert found.sums == {("ten_1", "2026-11"): (DUE, DUE)}
    top_up(month, stripe)
    stripe.act("pay", invoice=theirs)
    deliver(month, stripe)
    found = compared(month, stripe)
    assert found.differences == []
    counts = found.counts
    assert (counts.invoices, counts.top_ups, counts.waiting, counts.changed) == (1, 1, 0, 0)


def test_what_was_disputed_is_owed_here_and_not_collected_there(
    month: Month, stripe: StripeProcess
) -> None:
    _, theirs = pushed(month, stripe)
    intent = stripe.act("pay", invoice=theirs)
    stripe.act("dispute", intent=intent)
    deliver(month, stripe)
    assert compared(month, stripe).differences == []


def test_what_is_on_its_way_is_counted_and_no_difference(
    month: Month, stripe: StripeProcess
) -> None:
    issued(month)
    found = compared(month, stripe)
    assert (found.differences, found.counts.waiting) == ([], 4)
    stripe.act("faults", faults=["", "", "429"])
    outbox.push(month.database, stripe.provider)
    found = compared(month, stripe)
    assert (found.differences, found.counts.waiting) == ([], 2)


def paid_there(month: Month, stripe: StripeProcess, _ours: str, theirs: str) -> None:
    stripe.act("pay", invoice=theirs)  # and the webhook never came


def paid_here(month: Month, stripe: StripeProcess, ours: str, _theirs: str) -> None:
    with transaction(month.database) as connection:
        paying.pay(connection, ours, 100, method=paying.MANUAL, cause_id="bank-1")


def given_up_here(month: Month, stripe: StripeProcess, ours: str, _theirs: str) -> None:
    with transaction(month.database) as connection:
        issuing.give_up(connection, ours)


def voided_there(month: Month, stripe: StripeProcess, _ours: str, theirs: str) -> None:
    stripe.act("change", id=theirs, fields={"status": "void"})


def another_total_there(month: Month, stripe: StripeProcess, _ours: str, theirs: str) -> None:
    stripe.act("change", id=theirs, fields={"total": DUE + 1})


def twice_there(month: Month, stripe: StripeProcess, ours: str, theirs: str) -> None:
    body = {
        "customer": stripe.one("customer")["id"],
        "currency": "usd",
        "days_until_due": 14,
        "description": "again",
    }
    stripe.provider.do("invoice", ours, body, "another key")


def a_stranger_there(month: Month, stripe: StripeProcess, ours: str, theirs: str) -> None:
    twice_there(month, stripe, "inv_of_another_database", theirs)


def lost_there(month: Month, stripe: StripeProcess, _ours: str, theirs: str) -> None:
    stripe.act("change", id=theirs, fields={"metadata": {}})


def refused_there(month: Month, stripe: StripeProcess, ours: str, _theirs: str) -> None:
    with transaction(month.database) as connection:
        connection.execute(
            update(payment_outbox)
            .where(payment_outbox.c.subject == ours, payment_outbox.c.action == "finalise")
            .values(state="refused", provider_id=None, error="refused: no")
        )


def credit_bought_unheard(month: Month, stripe: StripeProcess, _ours: str, _theirs: str) -> None:
    top_up(month, stripe)


def paid_with(month: Month, stripe: StripeProcess, what: str, theirs: str) -> str:
    """Stripe's id of the payment of a top-up or of the invoice, which is booked."""
    if what == "top-up":
        top_up(month, stripe)
        intent = str(stripe.one("payment_intent")["id"])
    else:
        intent = str(stripe.act("pay", invoice=theirs))
    deliver(month, stripe)
    return intent


@pytest.mark.parametrize("scope", [{}, {"tenant_id": "ten_1"}], ids=["everybody", "alone"])
@pytest.mark.parametrize("what", ["top-up", "invoice"])
def test_a_refund_or_a_dispute_whose_webhook_did_not_come_is_named(
    month: Month, stripe: StripeProcess, what: str, scope: dict[str, str]
) -> None:
    _, theirs = pushed(month, stripe)
    intent = paid_with(month, stripe, what, theirs)

    def differing() -> list[tuple[str, ...]]:
        found = compared(month, stripe, **scope)
        assert len({difference.subject for difference in found.differences}) == len(
            found.differences
        )
        return [(each.check, each.expected, each.actual) for each in found.differences]

    refund = stripe.act("refund", payment_intent=intent, amount=150)
    assert differing() == [("refund booked = provider's", "150", "0")]
    deliver(month, stripe)
    assert differing() == []
    stripe.act("change", id=refund, fields={"status": "failed"})
    assert differing() == [("refund booked = provider's", "0", "150")]
    book(month, stripe, "refund", refund)
    assert differing() == []
    dispute = stripe.act("dispute", intent=intent)
    amount = str(stripe.one("payment_intent")["amount_received"])
    assert differing() == [("dispute booked = provider's", amount, "0")]
    deliver(month, stripe)
    assert differing() == []
    stripe.act("change", id=dispute, fields={"status": "won"})
    assert differing() == [("dispute booked = provider's", "0", amount)]
    book(month, stripe, "dispute", dispute)
    assert differing() == []


def test_what_has_moved_nothing_yet_and_what_is_of_others_is_no_difference(
    month: Month, stripe: StripeProcess
) -> None:
    _, theirs = pushed(month, stripe)
    intent = paid_with(month, stripe, "top-up", theirs)
    refund = stripe.act("refund", payment_intent=intent, amount=150)
    stripe.act("change", id=refund, fields={"status": "pending"})
    dispute = stripe.act("dispute", intent=intent)
    stripe.act("change", id=dispute, fields={"status": "warning_needs_response"})
    # Another business under the same account: no mark, no customer, no payment of ours.
    customer = stripe.provider.do("customer", "x", {"name": "X", "email": "x@x.example"}, "x")
    stripe.act("change", id=customer, fields={"metadata": {}})
    card = stripe.act("card", customer=customer)
    assert card is None
    body = {"customer": customer, "amount": 5, "currency": "usd", "description": "x"}
    other = stripe.provider.do("recharge", "x", body, "y")
    stripe.act("change", id=other, fields={"metadata": {}})
    stripe.act("refund", payment_intent=other, amount=5)
    assert compared(month, stripe).differences == []


def test_a_reversal_that_changes_while_stripe_is_asked_is_asked_for_again(
    month: Month, stripe: StripeProcess
) -> None:
    _, theirs = pushed(month, stripe)
    intent = paid_with(month, stripe, "top-up", theirs)
    refund = stripe.act("refund", payment_intent=intent, amount=150)
    dispute = stripe.act("dispute", intent=intent)
    deliver(month, stripe)

    class Meanwhile:
        """A provider at which the dispute is won and the refund fails, once both are listed."""

        def disputes(self, intent_id: str | None = None) -> Any:
            found = stripe.provider.disputes(intent_id)
            stripe.act("end_dispute", dispute=dispute, status="won")
            stripe.act("change", id=refund, fields={"status": "failed"})
            deliver(month, stripe)
            book(month, stripe, "refund", refund)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(stripe.provider, name)

    assert comparison.compare(month.database, Meanwhile()).differences == []  # type: ignore[arg-type]


def test_every_page_of_what_stripe_lists_is_read(month: Month, stripe: StripeProcess) -> None:
    _, theirs = pushed(month, stripe)
    intent = paid_with(month, stripe, "top-up", theirs)
    first = stripe.act("refund", payment_intent=intent, amount=1)  # it is on the last page
    for _ in range(110):
        later = stripe.act("refund", payment_intent=intent, amount=1)
        stripe.act("change", id=later, fields={"status": "pending"})
    found = compared(month, stripe)
    assert [each.subject for each in found.differences] == [f"ten_1 {first}"]
    assert found.counts.reversals == 111


Falsify = Callable[[Month, StripeProcess, str, str], None]


@pytest.mark.parametrize(
    ("falsify", "checks"),
    [
        (paid_there, {"invoice's payment = provider's", "invoice to collect = provider's"}),
        (paid_here, {"invoice to collect = provider's"}),
        (given_up_here, {"invoice to collect = provider's"}),
        (voided_there, {"invoice to collect = provider's"}),
        (another_total_there, {"invoice due = provider's total"}),
        (twice_there, {"the provider has the invoice once"}),
        (a_stranger_there, {"the provider's invoice is ours"}),
        (lost_there, {"the provider has the invoice once"}),
        (refused_there, {"the provider takes what it is told"}),
        (credit_bought_unheard, {"credit bought = provider's payment"}),
    ],
)
def test_what_differs_at_stripe_is_named(
    month: Month, stripe: StripeProcess, falsify: Falsify, checks: set[str]
) -> None:
    ours, theirs = pushed(month, stripe)
    falsify(month, stripe, ours, theirs)
    assert named(compared(month, stripe)) == checks


def test_an_invoice_that_stripe_was_never_told_of_is_named(
    month: Month, stripe: StripeProcess
) -> None:
    issued(month, is_told=False)
    outbox.push(month.database, stripe.provider)
    assert named(compared(month, stripe)) == {"the provider is told of the invoice"}


def test_what_changes_while_stripe_is_asked_is_compared_another_time(
    month: Month, stripe: StripeProcess
) -> None:
    _, theirs = pushed(month, stripe)

    class Meanwhile:
        """A provider that is paid, and says so, between our two looks."""

        def invoices(self, customer_id: str) -> Any:
            stripe.act("pay", invoice=theirs)
            found = stripe.provider.invoices(customer_id)
            deliver(month, stripe)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(stripe.provider, name)

    found = comparison.compare(month.database, Meanwhile())  # type: ignore[arg-type]
    assert (found.differences, found.counts.changed) == ([], 1)
    assert compared(month, stripe).differences == []


def test_a_tenant_and_a_month_can_be_compared_alone(month: Month, stripe: StripeProcess) -> None:
    _, theirs = pushed(month, stripe)
    stripe.act("change", id=theirs, fields={"total": DUE + 1})
    assert compared(month, stripe, tenant_id="ten_2").differences == []
    assert compared(month, stripe, tenant_id="ten_1", period="2026-10").differences == []
    (difference,) = compared(month, stripe, tenant_id="ten_1", period="2026-11").differences
    assert difference.subject == "ten_1 2026-11 INV-000001"
    assert (difference.expected, difference.actual) == ("400", "401")


class Asked:
    """A provider that notes what it was asked for."""

    def __init__(self, stripe: StripeProcess) -> None:
        self.questions: list[tuple[str, ...]] = []
        self._provider = stripe.provider

    def __getattr__(self, name: str) -> Any:
        def ask(*about: Any) -> Any:
            self.questions.append((name, *(each for each in about if each is not None)))
            return getattr(self._provider, name)(*about)

        return ask


def test_one_tenant_is_compared_by_what_stripe_has_of_its_customers_alone(
    month: Month, stripe: StripeProcess
) -> None:
    """Of two customers: the second is what a backup knows nothing of."""
    _, theirs = pushed(month, stripe)
    first = stripe.one("customer")["id"]
    mine = paid_with(month, stripe, "top-up", theirs)
    second = bought_by(stripe, "ten_1", "top_forgotten")
    other = bought_by(stripe, 'ten_2" OR metadata["dflash_id"]:"ten_1', "top_other")
    for intent in (mine, second[1], other[1]):
        stripe.act("refund", payment_intent=intent, amount=100)
    asked = Asked(stripe)
    alone = comparison.compare(month.database, asked, "ten_1")  # type: ignore[arg-type]
    of_all = compared(month, stripe).differences
    assert alone.differences == [each for each in of_all if each.subject.startswith("ten_1 ")]
    assert named(alone) == {"refund booked = provider's", "the provider's payment is ours"}
    assert len(of_all) == len(alone.differences) + 1
    again = [each for each in asked.questions if each[0] != "refund"]
    assert sorted(again) == sorted(
        [
            ("customers", "ten_1"),
            *((kind, each) for kind in ("invoices", "payments") for each in (first, second[0])),
            *((kind, each) for kind in ("refunds", "disputes") for each in (mine, second[1])),
        ]
    )
    (strange,) = stripe.provider.customers('ten_2" OR metadata["dflash_id"]:"ten_1')
    assert strange.id == other[0]


def bought_by(stripe: StripeProcess, tenant_id: str, top_up_id: str) -> tuple[str, str]:
    """Stripe's ids of a customer that no book here knows, and of what it paid for a top-up."""
    named_so = {"name": tenant_id, "email": "x@x.example"}
    customer = stripe.provider.do("customer", tenant_id, named_so, f"customer of {top_up_id}")
    stripe.act("card", customer=customer)
    body = {"customer": customer, "amount": 500, "currency": "usd", "description": "x"}
    return customer, stripe.provider.do("recharge", top_up_id, body, f"payment of {top_up_id}")


def test_the_command_asks_stripe_unless_it_is_told_not_to(
    month: Month, stripe: StripeProcess
) -> None:
    """`Month` settles without an engine, so its tokens differ; here only Stripe's part counts."""
    _, theirs = pushed(month, stripe)
    stripe.act("change", id=theirs, fields={"total": DUE + 1})
    url = month.database.url.render_as_string(hide_password=False)
    context = CliContext(home=None, database_url=url, open_provider=lambda: stripe.provider)  # type: ignore[arg-type]

    def told(*options: str) -> dict[str, Any]:
        done = CliRunner().invoke(reconcile, ["--json", *options], obj=context)
        assert done.exit_code == 1
        return dict(json.loads(done.output))

    asked, alone = told(), told("--offline")
    checks = {each["check"] for each in asked["differences"]}
    checks -= {each["check"] for each in alone["differences"]}
    assert checks == {"invoice due = provider's total"}
    assert (asked["provider"]["invoices"], alone["provider"]) == (1, None)
    (period,) = asked["periods"]
    assert (period["due_minor"], period["provider_minor"]) == (DUE, DUE + 1)
    assert period["rated_nano"] == period["ledger_nano"] == period["billed_nano"]
