"""Invoices pushed to Stripe: once each, in order, whatever breaks on the way."""

from __future__ import annotations

from dataclasses import replace

import fake_stripe_invoices
import pytest
from billing_world import add_tenant
from invoice_world import Month, at, priced
from sqlalchemy import Connection, select, update
from stripe_process import StripeProcess

from billing.invoices import closing, issuing
from billing.payments import collection, outbox, refusals
from billing.payments.provider import Body, Provider, Refused
from billing.payments.tables import payment_outbox
from metering.database import snapshot, transaction

HOUR_US = 3600 * 10**6
FAULTS = ("429", "500", "500 after", "drop", "drop after")


def issue(month: Month, stripe: StripeProcess) -> str:
    """Issue an invoice over 4.00 and tax, all of it due, and queue it in the same transaction."""
    month.terms("ten_1", name="Acme", tax_percent=25)
    when = at("2026-11-10 12:00")
    charged = month.serve("req_1", ended_us=when, tokens=999_995)
    month.on_account("req_1", "ten_1", charged, at_us=when)
    month.now_us = at("2026-12-04 00:00")
    stripe.act("clock", at_s=month.now_us / 10**6)

    def queue(connection: Connection, invoice_id: str) -> None:
        assert collection.collect(connection, invoice_id) is True

    (closed,) = closing.close(month.database, "2026-11", witness=queue)
    assert closed.invoice_id is not None
    return closed.invoice_id


def push_all(month: Month, stripe: StripeProcess) -> None:
    """Push until nothing is left, the hours between attempts passing."""
    for _ in range(40):
        outbox.push(month.database, stripe.provider)
        if not open_rows(month):
            return
        month.now_us += HOUR_US
        stripe.act("clock", advance_s=3600)
    raise AssertionError(open_rows(month))


def open_rows(month: Month) -> list[tuple[str, str]]:
    with snapshot(month.database) as connection:
        rows = connection.execute(
            select(payment_outbox.c.action, payment_outbox.c.error).where(
                payment_outbox.c.state != "sent"
            )
        )
        return [tuple(row) for row in rows]


def is_whole(month: Month, stripe: StripeProcess, invoice_id: str) -> None:
    """There is exactly one of everything at Stripe, and it says what our invoice says."""
    assert stripe.counts() == {"customer": 1, "invoice": 1, "invoiceitem": 2}
    theirs, ours = stripe.one("invoice"), month.invoice(invoice_id)
    assert theirs["status"] == "open"
    assert theirs["amount_due"] == ours.row.due_minor == 500
    assert theirs["metadata"] == {"dflash_id": invoice_id}
    items = [each["amount"] for each in stripe.objects("invoiceitem")]
    assert items == [line.amount_minor for line in ours.lines if line.amount_minor]


def test_a_final_invoice_is_pushed_as_it_is(month: Month, stripe: StripeProcess) -> None:
    invoice_id = issue(month, stripe)
    assert outbox.push(month.database, stripe.provider) == 5
    is_whole(month, stripe, invoice_id)
    assert outbox.push(month.database, stripe.provider) == 0
    assert stripe.state()["posts"] == 5


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("place", [1, 4])
def test_a_fault_anywhere_has_one_effect_at_stripe(
    month: Month, stripe: StripeProcess, fault: str, place: int
) -> None:
    invoice_id = issue(month, stripe)
    stripe.act("faults", faults=[""] * place + [fault])
    push_all(month, stripe)
    is_whole(month, stripe, invoice_id)


def test_faults_one_after_another_have_one_effect(month: Month, stripe: StripeProcess) -> None:
    invoice_id = issue(month, stripe)
    stripe.act("faults", faults=[*FAULTS, *FAULTS, *FAULTS])
    push_all(month, stripe)
    is_whole(month, stripe, invoice_id)


def test_an_answer_lost_for_longer_than_stripe_remembers_is_looked_up_not_sent_again(
    month: Month, stripe: StripeProcess
) -> None:
    invoice_id = issue(month, stripe)
    for place in range(5):
        # The effect happens, the answer is lost, and a day and a half goes by.
        stripe.act("faults", faults=["drop after"])
        outbox.push(month.database, stripe.provider)
        assert len(open_rows(month)) == 5 - place
        month.now_us += 36 * HOUR_US
        stripe.act("clock", advance_s=36 * 3600)
        posts = stripe.state()["posts"]
        stripe.act("faults", faults=["429"])
        outbox.push(month.database, stripe.provider)
        assert stripe.state()["posts"] <= posts + 1  # the lost one itself was only looked up
        month.now_us += HOUR_US
    push_all(month, stripe)
    is_whole(month, stripe, invoice_id)


def test_a_customer_that_is_stuck_holds_up_nobody_else(month: Month, stripe: StripeProcess) -> None:
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", credit="1", pays=priced())
        collection.enrol(connection, "ten_2", "two@example.com", "USD")
        outbox.enqueue(connection, "ten_1", "invoice", "inv_1", {"customer": "cus_none"})
        connection.execute(
            update(payment_outbox)
            .where(payment_outbox.c.tenant_id == "ten_1", payment_outbox.c.action == "customer")
            .values(next_try_at_us=month.now_us + HOUR_US)
        )
    assert outbox.push(month.database, stripe.provider) == 1
    assert stripe.one("customer")["email"] == "two@example.com"


def test_a_tenant_whose_push_breaks_keeps_no_other_waiting(
    month: Month, stripe: StripeProcess
) -> None:
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", pays=priced())
        collection.enrol(connection, "ten_2", "pay@two.example", "USD")

    class Breaking(Provider):
        def do(self, action: str, subject: str, body: Body, key: str) -> str:
            if subject == "ten_1":
                raise KeyError("an answer that nobody expected")
            return stripe.provider.do(action, subject, body, key)

    with pytest.raises(ExceptionGroup) as failed:
        outbox.push(month.database, Breaking())
    assert [each.__notes__ for each in failed.value.exceptions] == [["of ten_1"]]
    assert stripe.one("customer")["email"] == "pay@two.example"
    assert open_rows(month) == [("customer", None)]


def test_what_stripe_refuses_waits_for_a_person_and_goes_out_again_under_another_key(
    month: Month, stripe: StripeProcess
) -> None:
    with transaction(month.database) as connection:
        body = {"customer": {"object": "customer", "of": "ten_1"}, "invoice": "in_none"}
        item = {**body, "currency": "usd", "amount": 1, "description": "x"}
        outbox.enqueue(connection, "ten_1", "item", "inv_x/0", item)
    outbox.push(month.database, stripe.provider)
    ((action, error),) = open_rows(month)
    assert (action, error.partition(":")[0]) == ("item", "refused")
    with transaction(month.database) as connection:
        seq = connection.execute(
            select(payment_outbox.c.seq).where(payment_outbox.c.action == "item")
        ).scalar_one()
        assert refusals.retry(connection, seq) is True
        assert refusals.retry(connection, seq) is False


def test_queueing_the_same_again_queues_nothing(month: Month, stripe: StripeProcess) -> None:
    invoice_id = issue(month, stripe)
    with transaction(month.database) as connection:
        assert collection.collect(connection, invoice_id) is False
        assert collection.enrol(connection, "ten_1", "other@acme.example", "USD") is False
    outbox.push(month.database, stripe.provider)
    is_whole(month, stripe, invoice_id)


def test_an_invoice_of_more_lines_than_stripe_takes_has_the_last_ones_in_one(
    month: Month, stripe: StripeProcess
) -> None:
    invoice = month.invoice(issue(month, stripe))
    for times in (124, 125, 126, 400):
        lines = [line for line in invoice.lines if line.amount_minor] * times
        items = collection.items(replace(invoice, lines=tuple(lines)))
        assert len(items) == min(len(lines), fake_stripe_invoices.ITEMS_MAX)
        assert sum(amount for _, amount in items) == 500 * times
    assert items[-1][0] == "551 further lines"


def test_a_voided_invoice_is_voided_there_too(month: Month, stripe: StripeProcess) -> None:
    invoice_id = issue(month, stripe)
    with transaction(month.database) as connection:
        issuing.void(connection, invoice_id)
        collection.tell(connection, invoice_id)
    push_all(month, stripe)
    assert stripe.one("invoice")["status"] == "void"


def test_the_same_key_with_other_parameters_is_an_error_there(stripe: StripeProcess) -> None:
    provider = stripe.provider
    first = provider.do("customer", "ten_1", {"name": "A", "email": "a@example.com"}, "key")
    assert provider.do("customer", "ten_1", {"name": "A", "email": "a@example.com"}, "key") == first
    with pytest.raises(Refused, match="same parameters"):
        provider.do("customer", "ten_1", {"name": "B", "email": "a@example.com"}, "key")
    stripe.act("clock", advance_s=25 * 3600)
    body = {"name": "A", "email": "a@example.com"}
    assert provider.do("customer", "ten_1", body, "key") != first
