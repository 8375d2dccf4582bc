"""Rows that Stripe refused: tried again as things stand now, or let go without losing money."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from billing_world import balances, books_balance
from click.testing import CliRunner
from invoice_world import Month
from stripe_invoices import DUE, compared, deliver, named, pushed
from stripe_process import StripeProcess

from billing.errors import PaymentConflict
from billing.invoices import credit_notes, issuing
from billing.payments import collection, outbox, refusals, top_ups
from billing.payments.cli import payments
from billing.payments.provider import Body
from metering.cli_context import CliContext
from metering.database import snapshot, transaction


def refused(month: Month, stripe: StripeProcess) -> int:
    """Push, and the one row that is refused then."""
    outbox.push(month.database, stripe.provider)
    with snapshot(month.database) as connection:
        (row,) = [row for row in outbox.open_rows(connection) if row.state == "refused"]
    assert named(compared(month, stripe)) >= {"the provider takes what it is told"}
    return row.seq


def credit(month: Month) -> int:
    """Cents of the tenant's credit, beyond what it began with."""
    with snapshot(month.database) as connection:
        books_balance(connection)
        return balances(connection)["tenant_credit"] // 10**7 - 100_000


def test_a_credit_note_of_what_was_paid_meanwhile_is_told_as_such_when_tried_again(
    month: Month, stripe: StripeProcess
) -> None:
    ours, theirs = pushed(month, stripe)
    stripe.act("pay", invoice=theirs)  # and its webhook is late
    with transaction(month.database) as connection:
        credit_notes.credit(connection, ours, 150, reason="ours", reference="r")
        collection.tell(connection, ours)
    seq = refused(month, stripe)
    deliver(month, stripe)
    with transaction(month.database) as connection:
        assert refusals.retry(connection, seq)
        assert not refusals.retry(connection, seq)
    outbox.push(month.database, stripe.provider)
    assert stripe.one("credit_note")["out_of_band_amount"] == 150
    deliver(month, stripe)
    assert compared(month, stripe).differences == []
    assert month.invoice(ours).row.state == "paid"
    assert credit(month) == 150


def test_the_voiding_of_what_was_paid_meanwhile_is_let_go_and_holds_up_nothing(
    month: Month, stripe: StripeProcess
) -> None:
    ours, theirs = pushed(month, stripe)
    stripe.act("pay", invoice=theirs)
    with transaction(month.database) as connection:
        issuing.void(connection, ours)
        collection.tell(connection, ours)
    seq = refused(month, stripe)
    body: Body = {"name": "Later", "email": "later@acme.example"}
    with transaction(month.database) as connection:
        outbox.enqueue(connection, "ten_1", "customer", "later", body)
    assert outbox.push(month.database, stripe.provider) == 0
    with transaction(month.database) as connection:
        assert refusals.drop(connection, seq)
        assert not refusals.drop(connection, seq)
        assert not refusals.retry(connection, seq)
    assert outbox.push(month.database, stripe.provider) == 1
    deliver(month, stripe)
    assert compared(month, stripe).differences == []
    assert credit(month) == DUE


def test_the_credit_of_a_refund_that_is_let_go_comes_back(
    month: Month, stripe: StripeProcess
) -> None:
    """Somebody refunded most of it at Stripe's own pages, and we ask for more than the rest."""
    outbox.push(month.database, stripe.provider)
    bought = top_ups.begin(
        month.database,
        stripe.provider,
        tenant_id="ten_1",
        amount_minor=2000,
        reference="r",
        return_url="https://gateway.example",
    )
    intent = stripe.act("complete", session=stripe.one("checkout.session")["id"])
    deliver(month, stripe)
    stripe.act("refund", payment_intent=intent, amount=1500)
    with transaction(month.database) as connection:
        top_ups.refund(connection, bought.id, 1000, "ticket-1")
    seq = refused(month, stripe)
    assert credit(month) == 1000
    with transaction(month.database) as connection:
        refusals.drop(connection, seq)
    deliver(month, stripe)
    assert credit(month) == 500
    assert compared(month, stripe).differences == []


def test_what_comes_after_a_refund_that_is_refused_goes_out_at_once(
    month: Month, stripe: StripeProcess
) -> None:
    with transaction(month.database) as connection:
        refund = {"intent": "pi_none", "amount": 100}
        outbox.enqueue(connection, "ten_1", "refund", "top_1/ticket-1", refund)
        body: Body = {"name": "Later", "email": "later@acme.example"}
        outbox.enqueue(connection, "ten_1", "customer", "later", body)
    outbox.push(month.database, stripe.provider)
    with snapshot(month.database) as connection:
        assert [row.state for row in outbox.open_rows(connection)] == ["refused"]
        assert outbox.object_id(connection, "customer", "later") is not None


def test_what_is_let_go_is_not_tried_again_at_the_same_time(
    month: Month, stripe: StripeProcess
) -> None:
    """It would be done although the credit that it took was given back."""
    with transaction(month.database) as connection:
        outbox.enqueue(connection, "ten_1", "void", "inv_1", {"invoice": "in_none"})
    seq = refused(month, stripe)

    def retry() -> bool:
        with transaction(month.database) as connection:
            return refusals.retry(connection, seq)

    with ThreadPoolExecutor(1) as pool:
        with transaction(month.database) as connection:
            assert refusals.drop(connection, seq)
            tried = pool.submit(retry)
            wait([tried], timeout=0.2)
        assert tried.result(10) is False


def test_what_is_built_upon_is_not_let_go(month: Month, stripe: StripeProcess) -> None:
    with transaction(month.database) as connection:
        body = {"customer": "cus_none", "currency": "usd", "days_until_due": 14, "description": ""}
        outbox.enqueue(connection, "ten_1", "invoice", "inv_1", body)
    seq = refused(month, stripe)
    with pytest.raises(PaymentConflict, match="built upon"), transaction(month.database) as opened:
        refusals.drop(opened, seq)


def test_the_terminal_shows_tries_again_and_lets_go(
    month: Month, stripe: StripeProcess, tmp_path: Path, database_url: str
) -> None:
    ours, theirs = pushed(month, stripe)
    stripe.act("pay", invoice=theirs)
    with transaction(month.database) as connection:
        issuing.give_up(connection, ours)
        collection.tell(connection, ours)
    seq = str(refused(month, stripe))
    done: list[tuple[str, str]] = []

    def record(_connection: object, *, action: str, subject: str) -> None:
        done.append((action, subject))

    context = CliContext(
        tmp_path, database_url, record=record, open_provider=lambda: stripe.provider
    )

    def run(*words: str) -> tuple[int, str]:
        found = CliRunner().invoke(payments, list(words), obj=context)
        return found.exit_code, found.output

    code, shown = run("waiting")
    assert (code, f"give_up {ours}  refused" in shown) == (1, True)
    assert run("retry", seq)[0] == 0
    assert run("push") == (0, "0 sent\n")
    assert run("drop", seq)[0] == 0
    assert run("drop", seq)[0] == 1
    assert run("waiting") == (0, "")
    assert done == [("payments.retried", seq), ("payments.dropped", seq)]
