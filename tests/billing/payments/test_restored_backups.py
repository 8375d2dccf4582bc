"""A backup is restored, and Stripe remembers what our books have forgotten: nothing is done twice,
every payment, refund and dispute is named, and booked on a person's word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from billing_world import add_tenant
from click.testing import CliRunner
from databases import Backup
from invoice_world import Month, priced
from sqlalchemy import select
from stripe_invoices import compared, issued, named
from stripe_payments import book, bought, credit, deliver, push, pushed, receive
from stripe_process import StripeProcess

from billing.errors import UnknownTenant
from billing.invoices import credit_notes
from billing.payments import collection, meters, outbox, recharging, refusals, top_ups
from billing.payments.cli import payments
from billing.payments.tables import payment_outbox, payment_webhooks
from billing.payments.tables import top_ups as top_ups_table
from metering import rollups
from metering.cli_context import CliContext
from metering.database import snapshot, transaction

HOUR_US = 3600 * 10**6
BackUp = Callable[[], Backup]


@pytest.fixture(params=[1, 30])
def hours(request: pytest.FixtureRequest) -> int:
    """How long after the backup it is restored: Stripe knows its keys still, or no more."""
    return int(request.param)


def pass_by(month: Month, stripe: StripeProcess, hours: int) -> None:
    month.now_us += hours * HOUR_US
    stripe.act("clock", advance_s=hours * 3600)


def recharge(month: Month) -> None:
    with transaction(month.database) as connection:
        recharging.order(connection, "ten_1", below_nano=10**16, amount_minor=5000)
    assert recharging.recharge(month.database) == 1


# What waits when the backup is taken, is told Stripe after it, and waits again once it is restored.


def test_a_recharge_that_waited_charges_the_card_once(
    month: Month, stripe: StripeProcess, back_up: BackUp, hours: int
) -> None:
    bought(month, stripe)
    deliver(month, stripe)
    recharge(month)
    backup = back_up()
    push(month, stripe)
    backup.restore()
    pass_by(month, stripe, hours)
    push(month, stripe)
    assert [each["amount_received"] for each in stripe.objects("payment_intent")] == [2000, 5000]
    deliver(month, stripe)
    assert credit(month) == 7000
    assert compared(month, stripe).differences == []


def test_an_invoice_that_waited_is_there_once(
    month: Month, stripe: StripeProcess, back_up: BackUp, hours: int
) -> None:
    issued(month)
    backup = back_up()
    push(month, stripe)
    backup.restore()
    pass_by(month, stripe, hours)
    push(month, stripe)
    assert stripe.counts() == {"customer": 1, "invoice": 1, "invoiceitem": 1}
    assert compared(month, stripe).differences == []


def test_a_refund_and_a_credit_note_that_waited_are_there_once(
    month: Month, stripe: StripeProcess, back_up: BackUp, hours: int
) -> None:
    top_up, _ = bought(month, stripe)
    ours, _ = pushed(month, stripe)
    deliver(month, stripe)
    with transaction(month.database) as connection:
        top_ups.refund(connection, top_up, 700, "ticket-1")
        credit_notes.credit(connection, ours, 150, reason="ours", reference="r")
        collection.tell(connection, ours)
    backup = back_up()
    push(month, stripe)
    backup.restore()
    pass_by(month, stripe, hours)
    push(month, stripe)
    assert (stripe.one("refund")["amount"], stripe.one("credit_note")["amount"]) == (700, 150)
    deliver(month, stripe)
    assert compared(month, stripe).differences == []


@pytest.mark.parametrize("is_queued", [True, False])
def test_an_hour_is_told_a_meter_once_whether_it_waited_or_was_counted_anew(
    month: Month, stripe: StripeProcess, back_up: BackUp, hours: int, is_queued: bool
) -> None:
    stripe.act("meter", event_name="event")
    stripe.act("clock", at_s=month.now_us / 10**6)
    with transaction(month.database) as connection:
        meters.begin(connection, "ten_1", "output_tokens", "event")
    month.serve("req_1", ended_us=month.now_us, tokens=4_000)
    pass_by(month, stripe, 2)
    with transaction(month.database) as connection:
        rollups.refresh(connection, "ten_1")
    if is_queued:
        assert meters.queue(month.database) == 1
    backup = back_up()
    assert meters.queue(month.database) == (not is_queued)
    push(month, stripe)
    backup.restore()
    pass_by(month, stripe, hours)
    meters.queue(month.database)
    push(month, stripe)
    values = [each["payload"]["value"] for each in stripe.objects("billing.meter_event")]
    assert values == ["4000"]


def test_a_declined_recharge_that_a_person_tries_again_is_not_taken_for_done(
    month: Month, stripe: StripeProcess
) -> None:
    bought(month, stripe)
    deliver(month, stripe)
    recharge(month)
    stripe.act("decline", decline=True)
    outbox.push(month.database, stripe.provider)
    stripe.act("decline", decline=False)
    pass_by(month, stripe, 30)
    with transaction(month.database) as connection:
        (row,) = outbox.open_rows(connection)
        assert refusals.retry(connection, row.seq)
    push(month, stripe)
    deliver(month, stripe)
    assert credit(month) == 7000


# What came to be after the backup.


@pytest.fixture
def forgotten(month: Month, stripe: StripeProcess, back_up: BackUp) -> Iterator[str]:
    """A top-up of 20.00 that was paid and credited after the backup: Stripe's id of its payment."""
    outbox.push(month.database, stripe.provider)
    backup = back_up()
    _, intent = bought(month, stripe)
    deliver(month, stripe)
    assert credit(month) == 2000
    backup.restore()
    assert credit(month) == 0
    return intent


def test_money_for_a_top_up_that_is_forgotten_is_named_and_booked(
    month: Month, stripe: StripeProcess, forgotten: str
) -> None:
    (difference,) = compared(month, stripe).differences
    assert difference.check == "the provider's payment is ours"
    assert forgotten in difference.subject
    assert (difference.expected, difference.actual) == ("2000", "0")
    # Its events come again, and are answered: the books do not know what it is.
    assert set(deliver(month, stripe)) == {"ours, and not known here"}
    assert credit(month) == 0
    assert named(compared(month, stripe)) == {"the provider's payment is ours"}
    assert book(month, stripe, "payment", forgotten).startswith("credited as top_")
    assert book(month, stripe, "payment", forgotten) == "credited before"
    assert credit(month) == 2000
    assert compared(month, stripe).differences == []
    # What becomes of it later finds it.
    stripe.act("refund", payment_intent=forgotten, amount=500)
    dispute = stripe.act("dispute", intent=forgotten)
    deliver(month, stripe)
    stripe.act("end_dispute", dispute=dispute, status="won")
    deliver(month, stripe)
    assert credit(month) == 1500
    assert compared(month, stripe).differences == []


def test_no_card_is_charged_for_credit_whose_purchase_is_forgotten(
    month: Month, stripe: StripeProcess, forgotten: str
) -> None:
    recharge(month)
    outbox.push(month.database, stripe.provider)
    assert stripe.one("payment_intent")["id"] == forgotten
    assert named(compared(month, stripe)) == {
        "the provider's payment is ours",
        "the provider takes what it is told",
    }
    with transaction(month.database) as connection:
        (row,) = outbox.open_rows(connection)
        assert forgotten in str(row.error)
    assert recharging.recharge(month.database) == 0
    # Once it is booked, the card is charged again when a person says so.
    book(month, stripe, "payment", forgotten)
    with transaction(month.database) as connection:
        assert refusals.retry(connection, row.seq)
    push(month, stripe)
    deliver(month, stripe)
    assert credit(month) == 7000
    assert compared(month, stripe).differences == []


def test_forgotten_money_that_was_given_back_is_no_difference(
    month: Month, stripe: StripeProcess, forgotten: str
) -> None:
    stripe.act("refund", payment_intent=forgotten, amount=1500)
    (difference,) = compared(month, stripe).differences
    assert (difference.expected, difference.actual) == ("500", "0")
    refund = stripe.act("refund", payment_intent=forgotten, amount=500)
    assert compared(month, stripe).differences == []
    stripe.act("change", id=refund, fields={"status": "failed"})
    (difference,) = compared(month, stripe).differences
    assert (difference.expected, difference.actual) == ("500", "0")
    assert set(deliver(month, stripe)) == {"ours, and not known here"}
    assert credit(month) == 0


def test_refunds_and_disputes_that_are_forgotten_are_named_and_booked(
    month: Month, stripe: StripeProcess, back_up: BackUp
) -> None:
    top_up, _ = bought(month, stripe)
    _, theirs = pushed(month, stripe)
    stripe.act("pay", invoice=theirs)
    deliver(month, stripe)
    backup = back_up()
    with transaction(month.database) as connection:
        top_ups.refund(connection, top_up, 700, "ticket-1")
    push(month, stripe)
    for paid in stripe.objects("payment_intent"):
        stripe.act("dispute", intent=paid["id"])
    deliver(month, stripe)
    backup.restore()
    found = compared(month, stripe)
    assert found.counts.reversals == 3
    assert named(found) == {"refund booked = provider's", "dispute booked = provider's"}
    for difference in found.differences:
        kind, provider_id = difference.check.split()[0], difference.subject.split()[-1]
        assert difference.actual == "0"
        book(month, stripe, kind, provider_id)
    assert compared(month, stripe).differences == []
    before = credit(month)
    deliver(month, stripe)
    assert credit(month) == before


def test_a_refund_that_is_asked_for_again_is_made_once(
    month: Month, stripe: StripeProcess, back_up: BackUp, hours: int
) -> None:
    top_up, _ = bought(month, stripe)
    deliver(month, stripe)
    backup = back_up()
    for is_again in (False, True):
        with transaction(month.database) as connection:
            top_ups.refund(connection, top_up, 700, "ticket-1")
        push(month, stripe)
        assert stripe.one("refund")["amount"] == 700
        if not is_again:
            backup.restore()
            pass_by(month, stripe, hours)
    deliver(month, stripe)
    assert credit(month) == 1300
    assert compared(month, stripe).differences == []


def test_a_tenant_that_is_enrolled_again_stays_the_same_customer(
    month: Month, stripe: StripeProcess, back_up: BackUp, hours: int
) -> None:
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", pays=priced())
    backup = back_up()
    customers = len(stripe.objects("customer"))
    known = []
    for _ in range(2):
        with transaction(month.database) as connection:
            assert collection.enrol(connection, "ten_2", "two@example.com", "USD")
        outbox.push(month.database, stripe.provider)
        with snapshot(month.database) as connection:
            known.append(outbox.object_id(connection, "customer", "ten_2"))
        backup.restore()
        pass_by(month, stripe, hours)
    assert known[0] is not None
    assert known[0] == known[1]
    assert len(stripe.objects("customer")) == customers + 1


def test_an_invoice_that_is_forgotten_is_named_with_whatever_customer_has_it(
    month: Month, stripe: StripeProcess, back_up: BackUp
) -> None:
    backup = back_up()  # before Stripe has heard of anybody
    _, theirs = pushed(month, stripe)
    bought(month, stripe)
    backup.restore()
    found = compared(month, stripe)
    assert named(found) == {"the provider's invoice is ours", "the provider's payment is ours"}
    intent = stripe.act("pay", invoice=theirs)
    stripe.act("refund", payment_intent=intent, amount=400)
    assert set(deliver(month, stripe)) == {"ours, and not known here"}
    # A customer made anew, as after a day and under another name, is not the only one looked at.
    stripe.provider.do("customer", "ten_1", {"name": "A", "email": "a@a.example"}, "another key")
    assert named(compared(month, stripe)) == {"the provider's payment is ours"}


def test_an_invoice_that_is_forgotten_is_named_until_it_asks_for_nothing_and_keeps_nothing(
    month: Month, stripe: StripeProcess, back_up: BackUp
) -> None:
    backup = back_up()
    _, theirs = pushed(month, stripe)
    backup.restore()

    def is_named(**fields: str) -> bool:
        stripe.act("change", id=theirs, fields=fields)
        return named(compared(month, stripe)) == {"the provider's invoice is ours"}

    statuses = ("draft", "open", "uncollectible", "void")
    assert [is_named(status=each) for each in statuses] == [True, True, True, False]
    stripe.act("change", id=theirs, fields={"status": "open"})
    intent = stripe.act("pay", invoice=theirs)
    assert is_named()
    stripe.act("refund", payment_intent=intent, amount=399)
    assert is_named()
    stripe.act("refund", payment_intent=intent, amount=1)
    assert compared(month, stripe).differences == []


def test_a_tenant_that_is_forgotten_is_named(
    month: Month, stripe: StripeProcess, back_up: BackUp
) -> None:
    backup = back_up()
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", pays=priced())
        collection.enrol(connection, "ten_2", "two@example.com", "USD")
    outbox.push(month.database, stripe.provider)
    made = top_ups.begin(
        month.database,
        stripe.provider,
        tenant_id="ten_2",
        amount_minor=300,
        reference="r",
        return_url="https://gateway.example/",
    )
    intent = stripe.act("complete", session=stripe.one("checkout.session")["id"])
    backup.restore()
    (difference,) = compared(month, stripe).differences
    assert difference.subject == f"ten_2 {made.id} {intent}"
    assert compared(month, stripe, tenant_id="ten_1").differences == []
    assert compared(month, stripe, tenant_id="ten_2").differences == [difference]
    with pytest.raises(UnknownTenant):
        book(month, stripe, "payment", intent)


def test_only_the_months_that_are_asked_for_are_compared(
    month: Month, stripe: StripeProcess, forgotten: str
) -> None:
    now_s = stripe.one("payment_intent")["created"]
    stripe.act("change", id=forgotten, fields={"created": now_s - 40 * 86_400})
    everything = compared(month, stripe).differences
    assert len(everything) == 1
    months = ["2026-09", "2026-10", "2026-11", "2026-12"]
    by_month = [compared(month, stripe, period=each).differences for each in months]
    assert sorted(map(len, by_month)) == [0, 0, 0, 1]


def test_a_webhook_of_what_is_not_known_is_kept_with_what_it_was_about(
    month: Month, stripe: StripeProcess, forgotten: str
) -> None:
    receive(month, stripe, *stripe.events()[0])
    with snapshot(month.database) as connection:
        kept = connection.execute(
            select(payment_webhooks.c.object_id, payment_webhooks.c.outcome)
        ).one()
        assert tuple(kept) == (forgotten, "ours, and not known here")
        assert connection.scalar(select(top_ups_table.c.id)) is None
        assert connection.scalar(select(payment_outbox.c.action)) == "customer"


def test_the_command_books_and_says_what(
    month: Month, stripe: StripeProcess, forgotten: str
) -> None:
    written = []
    url = month.database.url.render_as_string(hide_password=False)
    context = CliContext(
        home=None,  # type: ignore[arg-type]
        database_url=url,
        record=lambda _connection, **entry: written.append(entry),
        open_provider=lambda: stripe.provider,
    )
    done = CliRunner().invoke(payments, ["book", "payment", forgotten], obj=context)
    assert done.exit_code == 0
    assert done.output.startswith(f"{forgotten}: credited as top_")
    assert [(each["action"], each["subject"]) for each in written] == [
        ("payments.booked", forgotten)
    ]
    assert credit(month) == 2000
