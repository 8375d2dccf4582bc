"""Credit that is bought, refunded, disputed, and bought again by itself."""

from __future__ import annotations

import pytest
from billing_world import add_tenant
from invoice_world import Month, priced
from sqlalchemy import Connection, select, update
from stripe_payments import begin, bought, credit, deliver, ledger, pushed
from stripe_process import StripeProcess

from api.tenants import suspend
from billing.errors import (
    PaymentConflict,
    PaymentsDisabled,
    ProviderFailed,
)
from billing.invoices import issuing
from billing.ledger import balances
from billing.ledger.accounts import lock_tenant
from billing.money import NANO
from billing.payments import collection, outbox, recharging, top_ups
from billing.payments.tables import top_ups as top_ups_table
from metering.database import snapshot, transaction
from metering.tables import tenants


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
        recharging.order(connection, "ten_1", below_nano=2000 * 10**9, amount_minor=150_000)
    outbox.push(month.database, stripe.provider)
    stripe.act("card", customer=stripe.one("customer")["id"])
    assert [recharging.recharge(month.database) for _ in range(2)] == [1, 0]
    stripe.act("faults", faults=["drop after"])
    outbox.push(month.database, stripe.provider)
    month.now_us += 60 * 10**6
    outbox.push(month.database, stripe.provider)
    assert stripe.counts()["payment_intent"] == 1
    deliver(month, stripe)
    assert credit(month) == 150_000
    assert recharging.recharge(month.database) == 0
    with transaction(month.database) as connection:
        recharging.order(connection, "ten_1", below_nano=9000 * 10**9, amount_minor=150_000)
    stripe.act("decline", decline=True)
    assert recharging.recharge(month.database) == 1
    outbox.push(month.database, stripe.provider)
    deliver(month, stripe)
    assert credit(month) == 150_000
    assert recharging.recharge(month.database) == 0
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
            recharging.order(connection, "ten_1", below_nano=10**13, amount_minor=1000)
        assert recharging.recharge(month.database) == 1
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


def test_a_card_whose_owner_disputes_a_payment_is_charged_no_more_by_itself(
    month: Month, stripe: StripeProcess
) -> None:
    _, intent = bought(month, stripe)
    deliver(month, stripe)
    with transaction(month.database) as connection:
        recharging.order(connection, "ten_1", below_nano=10**13, amount_minor=1000)
    stripe.act("refund", payment_intent=intent, amount=100)
    dispute = stripe.act("dispute", intent=intent)
    stripe.act("end_dispute", dispute=dispute, status="warning_needs_response")
    deliver(month, stripe)
    with snapshot(month.database) as connection:
        assert not collection.account(connection, "ten_1").recharge_failed
    stripe.act("end_dispute", dispute=dispute, status="needs_response")
    deliver(month, stripe)
    assert recharging.recharge(month.database) == 0
    with transaction(month.database) as connection:
        recharging.order(connection, "ten_1", below_nano=10**13, amount_minor=1000)
    deliver(month, stripe)  # the same again
    assert recharging.recharge(month.database) == 1


def test_a_suspended_tenants_card_is_not_charged_by_itself(
    month: Month, stripe: StripeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor where it is suspended between being chosen and being locked."""
    with transaction(month.database) as connection:
        recharging.order(connection, "ten_1", below_nano=10**13, amount_minor=1000)
        suspend(connection, "ten_1")
    assert recharging.recharge(month.database) == 0

    def suspend_late(connection: Connection, tenant_id: str, currency: str) -> int:
        suspend(connection, tenant_id)
        return lock_tenant(connection, tenant_id, currency)

    with transaction(month.database) as connection:
        suspend(connection, "ten_1", suspended=False)
    with monkeypatch.context() as patch:
        patch.setattr(recharging, "lock_tenant", suspend_late)
        assert recharging.recharge(month.database) == 0
    with transaction(month.database) as connection:
        suspend(connection, "ten_1", suspended=False)
    assert recharging.recharge(month.database) == 1


def test_a_tenant_that_pays_otherwise_buys_nothing_here(
    month: Month, stripe: StripeProcess
) -> None:
    with pytest.raises(PaymentsDisabled), transaction(month.database) as connection:
        recharging.order(connection, "ten_none", below_nano=1, amount_minor=1)
    for currency in ("KWD", "MGA"):  # three decimals in tens only; none, where ISO has two
        with pytest.raises(PaymentConflict), transaction(month.database) as connection:
            collection.enrol(connection, "ten_1", "a@b.example", currency)
    assert stripe.events() == []


def test_a_currency_without_minor_units_is_bought_in_whole_ones(
    month: Month, stripe: StripeProcess
) -> None:
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", credit="0", pays=priced())
        in_yen = update(tenants).where(tenants.c.id == "ten_2").values(currency="JPY")
        connection.execute(in_yen)
        collection.enrol(connection, "ten_2", "pay@two.example", "JPY")
        recharging.order(connection, "ten_2", below_nano=100 * NANO, amount_minor=500)
    outbox.push(month.database, stripe.provider)
    (customer,) = (each for each in stripe.objects("customer") if "two" in each["email"])
    stripe.act("card", customer=customer["id"])
    assert recharging.recharge(month.database) == 1
    outbox.push(month.database, stripe.provider)
    bought_there = stripe.one("payment_intent")
    assert (bought_there["amount"], bought_there["currency"]) == (500, "jpy")
    deliver(month, stripe)
    with snapshot(month.database) as connection:
        assert balances.balance(connection, "ten_2").available_nano == 500 * NANO


@pytest.mark.parametrize("currency", ["KWD", "BHD", "ISK", "UGX", "MGA"])
def test_a_currency_that_stripe_counts_otherwise_is_refused(month: Month, currency: str) -> None:
    with transaction(month.database) as connection:
        with pytest.raises(PaymentConflict, match=f"payments in {currency} are not supported"):
            collection.enrol(connection, "ten_2", "pay@two.example", currency)
        assert collection.account(connection, "ten_2") is None
