"""What an unpaid invoice does: reminders on their days, then nothing new on account until paid."""

from __future__ import annotations

import json

import pytest
from billing_cases import summary, unit
from billing_world import FAR_US, add_request, add_tenant, balances, books_balance, ended
from invoice_world import DAY_US, Month, at, priced
from sqlalchemy import select

from billing.credit_tables import notices
from billing.errors import InvoiceConflict, PaymentOverdue
from billing.gate import HoldGate
from billing.invoices import credit_notes, dunning, issuing, paying
from billing.invoices.dunning import Reminded
from billing.invoices.queries import Invoice
from billing.ledger import credits, holds, terms
from billing.money import parse_nano
from metering.database import snapshot, transaction
from metering.protocols import Cover


@pytest.fixture
def owed(month: Month) -> Invoice:
    """`ten_2` buys on account, and owes 4.00 by an invoice that is due now."""
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", credit="0", pays=priced())
        terms.change(connection, "ten_2", receivable_limit_nano=parse_nano("100"))
    month.serve("req_1", "ten_2", ended_us=at("2026-11-10 12:00"), tokens=1_000_000)
    month.now_us = at("2026-12-04 00:00")
    invoice = month.issued("2026-11", "ten_2")
    assert invoice.row.due_at_us == month.now_us + 14 * DAY_US
    month.now_us = invoice.row.due_at_us
    return invoice


def told(month: Month, kind: str) -> list[dict[str, str]]:
    with snapshot(month.database) as connection:
        rows = connection.scalars(
            select(notices.c.data).where(notices.c.type == kind).order_by(notices.c.created_at_us)
        )
        return [json.loads(row) for row in rows]


def admit(month: Month, request_id: str, tokens: int = 100, tenant_id: str = "ten_2") -> None:
    with transaction(month.database) as connection:
        admitted = add_request(connection, request_id, tenant_id, max_tokens=tokens)
        HoldGate(lookahead_tokens=10).admit(connection, admitted, expires_at_us=FAR_US)


def pay(month: Month, invoice: Invoice, minor: int, cause: str = "wire") -> None:
    assert invoice.row.id is not None
    with transaction(month.database) as connection:
        paying.pay(connection, invoice.row.id, minor, method=paying.MANUAL, cause_id=cause)


def remind(month: Month) -> list[Reminded]:
    """All tenants in turn; what those that heard anything were told."""
    heard, tenant_id = [], ""
    while True:
        with transaction(month.database) as connection:
            found = dunning.next_due(connection, tenant_id)
            if found is None:
                return heard
            tenant_id = found
            if (told := dunning.remind(connection, tenant_id)).is_news:
                heard.append(told)


def days_pass(month: Month, days: int) -> None:
    for _ in range(days):
        month.now_us += DAY_US
        remind(month)


def test_each_reminder_is_told_once_on_its_day_and_names_what_is_left(
    month: Month, owed: Invoice
) -> None:
    assert remind(month) == []
    days_pass(month, 3)
    pay(month, owed, 100)
    days_pass(month, 5)
    remind(month)
    found = told(month, "invoice.overdue")
    assert [(each["days_overdue"], each["remaining"]) for each in found] == [
        ("1", "4.00"),
        ("7", "3.00"),
    ]
    assert {each["number"] for each in found} == {owed.row.number}


def test_days_that_went_by_unseen_are_one_reminder(month: Month, owed: Invoice) -> None:
    month.now_us += 9 * DAY_US
    (reminded,) = remind(month)
    assert (reminded.numbers, reminded.is_paused) == ((owed.row.number,), False)
    assert remind(month) == []
    assert [each["days_overdue"] for each in told(month, "invoice.overdue")] == ["9"]


def test_nothing_new_is_had_on_account_until_it_is_paid_and_what_runs_runs_on(
    month: Month, owed: Invoice
) -> None:
    """given a request that runs on account, when the pause begins, then it grows and settles,
    and no other is admitted; once the invoice is paid, it is.
    """
    admit(month, "req_2")
    days_pass(month, 13)
    admit(month, "req_3")
    days_pass(month, 1)
    with pytest.raises(PaymentOverdue) as refusal:
        admit(month, "req_4")
    assert refusal.value.available_nano == 0
    with transaction(month.database) as connection:
        before = holds.find(connection, "req_2")
        more = summary(unit(50), request_id="req_2", tenant_id="ten_2")
        assert HoldGate().cover(connection, more) is Cover.COVERED
        after = holds.find(connection, "req_2")
        assert before is not None
        assert after is not None
        assert after.amount_nano > before.amount_nano
        final = summary(unit(80), request_id="req_2", tenant_id="ten_2", ended_at_us=month.now_us)
        ended(connection, month.settlement, final)
    pay(month, owed, 399)
    with pytest.raises(PaymentOverdue):
        admit(month, "req_5")
    pay(month, owed, 1, "wire-2")
    admit(month, "req_6")
    assert len(told(month, "credit.paused")) == len(told(month, "credit.resumed")) == 1
    assert told(month, "credit.paused")[0]["number"] == owed.row.number
    with snapshot(month.database) as connection:
        assert "write_off" not in balances(connection, "ten_2")
        books_balance(connection)


def test_prepaid_credit_pays_while_the_account_is_paused_and_never_runs_on_into_it(
    month: Month, owed: Invoice
) -> None:
    days_pass(month, 14)
    with transaction(month.database) as connection:
        credits.grant(connection, "ten_2", parse_nano("0.0001"), "gift")
    admit(month, "req_2")
    with transaction(month.database) as connection:
        more = summary(unit(90), request_id="req_2", tenant_id="ten_2")
        assert HoldGate().cover(connection, more) is Cover.CREDIT
    admit(month, "req_other", tenant_id="ten_1")


def test_what_was_given_up_is_written_off_and_still_pauses_until_somebody_pays(
    month: Month, owed: Invoice
) -> None:
    days_pass(month, 14)
    assert owed.row.id is not None
    with transaction(month.database) as connection:
        issuing.give_up(connection, owed.row.id)
    days_pass(month, 30)
    with snapshot(month.database) as connection:
        assert balances(connection, "ten_2")["write_off"] == -parse_nano("4")
    assert len(told(month, "invoice.overdue")) == 3, "nobody is reminded of what was given up"
    with pytest.raises(PaymentOverdue):
        admit(month, "req_2")
    pay(month, owed, 400)
    admit(month, "req_3")
    with snapshot(month.database) as connection:
        assert "write_off" not in balances(connection, "ten_2")
    month.check()


@pytest.mark.parametrize("way", ["credited", "voided", "no pause"])
def test_credit_goes_on_when_nothing_is_owed_too_long_whatever_ended_that(
    month: Month, owed: Invoice, way: str
) -> None:
    days_pass(month, 14)
    assert owed.row.id is not None
    with transaction(month.database) as connection:
        if way == "credited":
            credit_notes.credit(connection, owed.row.id, 400, reason="ours", reference="r")
        elif way == "voided":
            issuing.void(connection, owed.row.id)
    if way == "no pause":
        month.terms(pause_days=None)
        remind(month)
    admit(month, "req_2")


def test_a_payment_that_is_taken_back_pauses_again(month: Month, owed: Invoice) -> None:
    pay(month, owed, 400)
    days_pass(month, 14)
    admit(month, "req_2")
    assert owed.row.id is not None
    with transaction(month.database) as connection:
        paying.take_back(connection, owed.row.id, 400, method="stripe", cause_id="dispute")
    with pytest.raises(PaymentOverdue):
        admit(month, "req_3")


@pytest.mark.parametrize("days", ["7,1", "1,1", "x", "1;2", "99999"])
def test_days_of_reminders_are_ascending_numbers(month: Month, days: str) -> None:
    with pytest.raises(InvoiceConflict, match="ascending"):
        month.terms(reminder_days=days)
    month.terms(reminder_days="")
