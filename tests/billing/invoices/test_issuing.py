"""What becomes of a final invoice: paid, voided, given up, credited."""

from __future__ import annotations

import itertools
import json

import pytest
from billing_world import balances, books_balance
from hypothesis import given
from hypothesis import strategies as st
from invoice_world import Month, at, per_service_period
from sqlalchemy import Connection, select

from billing.credit_tables import notices
from billing.errors import InvoiceConflict, InvoiceNotFound
from billing.invoices import credit_notes, issuing, paying
from billing.invoices.closing import Outcome
from billing.invoices.credit_notes import _tax
from billing.invoices.queries import Invoice
from billing.invoices.standings import Standing
from billing.ledger.accounts import Account, AccountKind, lock_tenant
from billing.ledger.posting import Transfer, TransferKind, post
from metering import clock
from metering.database import snapshot, transaction


@pytest.fixture
def owed(month: Month) -> Invoice:
    """An invoice over 1.00 and 19 % tax, all of it on account."""
    month.terms("ten_1", name="Acme GmbH", tax_percent=19)
    when = at("2026-11-10 12:00")
    charged = month.serve("req_1", ended_us=when, tokens=249_995)
    assert charged == 10**9
    month.on_account("req_1", "ten_1", charged, at_us=when)
    month.now_us = at("2026-12-04 00:00")
    return month.issued("2026-11")


def pay(month: Month, invoice: Invoice, minor: int, cause: str = "wire") -> bool:
    with transaction(month.database) as connection:
        assert invoice.row.id is not None
        return paying.pay(connection, invoice.row.id, minor, method="manual", cause_id=cause)


def credit(month: Month, invoice: Invoice, minor: int, reference: str = "r") -> str:
    with transaction(month.database) as connection:
        assert invoice.row.id is not None
        return credit_notes.credit(
            connection, invoice.row.id, minor, reason="goodwill", reference=reference
        )


def found(month: Month) -> dict[str, int]:
    month.check()
    with snapshot(month.database) as connection:
        books_balance(connection)
        return balances(connection)


def test_payments_in_parts_settle_an_invoice_and_a_repeated_one_counts_once(
    month: Month, owed: Invoice
) -> None:
    assert owed.row.due_minor == 119
    assert pay(month, owed, 19) is True
    assert pay(month, owed, 19) is False
    assert month.invoice(owed.row.number).remaining_minor == 100
    with pytest.raises(InvoiceConflict):
        pay(month, owed, 20)
    pay(month, owed, 100, "rest")
    assert month.invoice(owed.row.number).row.state == "paid"
    assert "receivable" not in found(month)


def test_a_tenant_is_told_once_of_what_becomes_of_an_invoice(month: Month, owed: Invoice) -> None:
    for _ in range(2):
        credit(month, owed, 19)
        pay(month, owed, 100)
    with snapshot(month.database) as connection:
        told = connection.scalars(select(notices.c.type).order_by(notices.c.type))
        assert list(told) == ["invoice.credited", "invoice.issued", "invoice.paid"]


def test_a_tenant_is_told_of_every_change_of_an_invoice_once_and_in_order(
    month: Month, owed: Invoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paid, disputed, won, disputed again and forgiven: each of them twice, as events come."""
    ticks = itertools.count(month.now_us + 1)
    monkeypatch.setattr(clock, "now_us", lambda: next(ticks))
    assert owed.row.id is not None
    for step in ("paid", "disputed", "won", "lost", "credited"):
        for _ in range(2):
            with transaction(month.database) as connection:
                move = {"method": "stripe", "cause_id": step}
                if step == "paid":
                    paying.pay(connection, owed.row.id, 119, **move)
                elif step in ("disputed", "lost"):
                    paying.take_back(connection, owed.row.id, 119, **move)
                elif step == "won":
                    paying.restore(connection, owed.row.id, taken="disputed", **move)
                else:
                    credit_notes.credit(connection, owed.row.id, 119, reason="ours", reference=step)
    with snapshot(month.database) as connection:
        rows = connection.execute(
            select(notices.c.type, notices.c.data).order_by(notices.c.created_at_us)
        ).all()
    told = [(kind, json.loads(data)) for kind, data in rows]
    assert [(kind, each["state"], each["remaining"]) for kind, each in told] == [
        ("invoice.issued", "final", "1.19"),
        ("invoice.paid", "paid", "0.00"),
        ("invoice.reopened", "final", "1.19"),
        ("invoice.paid", "paid", "0.00"),
        ("invoice.reopened", "final", "1.19"),
        ("invoice.credited", "final", "0.00"),
        ("invoice.paid", "paid", "0.00"),
    ]
    assert {each["number"] for _, each in told} == {owed.row.number}


def test_what_is_paid_too_much_goes_into_credit(month: Month, owed: Invoice) -> None:
    before = found(month)["tenant_credit"]
    pay(month, owed, 150)
    assert found(month)["tenant_credit"] - before == 31 * 10**7


def test_a_void_invoice_keeps_its_number_and_its_month_is_billed_again(
    month: Month, owed: Invoice
) -> None:
    assert owed.row.id is not None
    for _ in range(2):
        with transaction(month.database) as connection:
            issuing.void(connection, owed.row.id)
    assert found(month)["accrued"] == -(10**9)
    assert [closed.outcome for closed in month.close("2026-11")] == [Outcome.ISSUED]
    (again,) = month.standing()
    assert again.row.number == "INV-000002"
    assert again.lines == owed.lines


def test_voiding_bills_what_was_billed_late_with_it_again(month: Month, owed: Invoice) -> None:
    late = month.serve("req_late", ended_us=at("2026-11-20 00:00"), tokens=250_000)
    month.on_account("req_late", "ten_1", late, at_us=at("2026-11-20 00:00"))
    month.now_us = at("2027-01-04 00:00")
    december = month.issued("2026-12")
    assert december.row.id is not None
    with transaction(month.database) as connection:
        issuing.void(connection, december.row.id)
    again = month.issued("2026-12")
    assert per_service_period([again]) == per_service_period([december]) == {"2026-11": late}


@pytest.mark.parametrize("state", ["paid", "part", "credited"])
def test_what_was_paid_or_credited_is_not_voided(month: Month, owed: Invoice, state: str) -> None:
    if state == "credited":
        credit(month, owed, 10)
    else:
        pay(month, owed, 119 if state == "paid" else 1)
    assert owed.row.id is not None
    with pytest.raises(InvoiceConflict), transaction(month.database) as connection:
        issuing.void(connection, owed.row.id)


def test_what_nobody_pays_is_written_off_and_may_still_be_paid(month: Month, owed: Invoice) -> None:
    assert owed.row.id is not None
    pay(month, owed, 19)
    for _ in range(2):
        with transaction(month.database) as connection:
            issuing.give_up(connection, owed.row.id)
    books = found(month)
    assert "receivable" not in books
    assert books["write_off"] == -(10**9)
    pay(month, owed, 100, "after all")
    assert "write_off" not in found(month)
    assert month.invoice(owed.row.number).row.state == "paid"


def test_a_credit_note_first_takes_off_what_is_due(month: Month, owed: Invoice) -> None:
    assert credit(month, owed, 50) == credit(month, owed, 50) == "CN-000001"
    invoice = month.invoice(owed.row.number)
    assert (invoice.remaining_minor, invoice.row.state) == (69, "final")
    (note,) = invoice.credit_notes
    assert (note.net_minor, note.tax_minor) == (42, 8)
    assert found(month)["receivable"] == -69 * 10**7


def test_credit_for_what_was_paid_goes_into_the_tenants_credit(month: Month, owed: Invoice) -> None:
    pay(month, owed, 100)
    before = found(month)["tenant_credit"]
    credit(month, owed, 119)
    books = found(month)
    assert books["tenant_credit"] - before == 10**9
    assert "tax" not in books
    assert "receivable" not in books
    assert month.invoice(owed.row.number).row.state == "paid"


def test_no_more_is_credited_than_the_invoice_comes_to(month: Month, owed: Invoice) -> None:
    credit(month, owed, 100)
    for amount in (20, 0, -1):
        with pytest.raises(InvoiceConflict):
            credit(month, owed, amount, "more")
    with pytest.raises(InvoiceConflict):
        credit(month, owed, 99)  # the same reference with another amount
    credit(month, owed, 19, "rest")
    assert sum(note.tax_minor for note in month.invoice(owed.row.number).credit_notes) == 19


def test_credit_notes_in_many_small_parts_credit_the_whole_tax(month: Month, owed: Invoice) -> None:
    for number in range(17):  # 1.12 of tax in each
        credit(month, owed, 7, f"part-{number}")
    notes = month.invoice(owed.row.number).credit_notes
    assert {note.tax_minor for note in notes} == {1, 2}
    assert sum(note.tax_minor for note in notes) == 19


@given(st.integers(1, 10**6), st.integers(0, 10**5), st.data())
def test_credit_notes_in_any_parts_credit_the_whole_tax(
    net: int, tax: int, data: st.DataObject
) -> None:
    total = net + tax
    cuts = data.draw(st.lists(st.integers(0, total), max_size=5))
    bounds = [0, *sorted(cuts), total]
    parts = [_tax(tax, total, bound) for bound in bounds]
    assert sum(high - low for low, high in itertools.pairwise(parts)) == tax
    assert parts == sorted(parts)


def test_a_payment_that_is_taken_back_opens_the_invoice_again(month: Month, owed: Invoice) -> None:
    assert owed.row.id is not None
    pay(month, owed, 119)
    for _ in range(2):
        with transaction(month.database) as connection:
            paying.take_back(connection, owed.row.id, 119, method="stripe", cause_id="dispute")
    invoice = month.invoice(owed.row.number)
    assert (invoice.row.state, invoice.remaining_minor) == ("final", 119)
    assert found(month)["receivable"] == -119 * 10**7


def test_a_surplus_that_was_spent_before_it_was_taken_back_is_lost_until_it_comes_back(
    month: Month, owed: Invoice
) -> None:
    pay(month, owed, 200_119)  # 2,000 too much, on top of 1,001 of credit
    for number in range(2):
        month.serve(f"req_big_{number}", ended_us=at("2026-12-05 00:00"), tokens=250_000_000)
    before = found(month)
    assert owed.row.id is not None
    with transaction(month.database) as connection:
        paying.take_back(connection, owed.row.id, 200_119, method="stripe", cause_id="dispute")
    books = found(month)
    assert books.get("tenant_credit", 0) == 0
    assert books["receivable"] == -119 * 10**7
    assert books["write_off"] < 0

    with transaction(month.database) as connection:
        paying.restore(
            connection, owed.row.id, taken="dispute", method="stripe", cause_id="dispute/won"
        )
    assert found(month) == before


def test_of_two_lost_payments_the_one_won_back_pays_for_the_credit_that_was_spent(
    month: Month, owed: Invoice
) -> None:
    """given a second payment that became credit and was spent, when both are lost and only that
    one comes back, then all of the invoice is still to be paid."""
    assert owed.row.id is not None
    pay(month, owed, 119)
    pay(month, owed, 119, "again")
    with transaction(month.database) as connection:
        credit = Account("ten_1", AccountKind.TENANT_CREDIT, "USD")
        earnings = Account("ten_1", AccountKind.EARNINGS, "USD")
        spent = lock_tenant(connection, "ten_1", "USD")
        post(connection, "x", [Transfer("x", TransferKind.CHARGE, credit, earnings, spent, 0)])
        for cause in ("d1", "d2"):
            paying.take_back(connection, owed.row.id, 119, method="stripe", cause_id=cause)
    assert found(month)["write_off"] == -119 * 10**7
    with transaction(month.database) as connection:
        won = {"taken": "d2", "method": "stripe", "cause_id": "d2/won"}
        paying.restore(connection, owed.row.id, **won)
    books = found(month)
    assert month.invoice(owed.row.number).remaining_minor == 119
    assert not {"write_off", "tenant_credit"} & books.keys()


@pytest.mark.parametrize("again", [False, True])
def test_what_was_given_up_and_paid_and_taken_back_is_given_up_again(
    month: Month, owed: Invoice, again: bool
) -> None:
    assert owed.row.id is not None
    with transaction(month.database) as connection:
        issuing.give_up(connection, owed.row.id)
        paying.pay(connection, owed.row.id, 119, method="stripe", cause_id="late")
        paying.take_back(connection, owed.row.id, 119, method="stripe", cause_id="dispute")
        if again:
            issuing.give_up(connection, owed.row.id)
    kind = "write_off" if again else "receivable"
    books = found(month)
    assert books[kind] == -119 * 10**7
    assert len({"write_off", "receivable"} & books.keys()) == 1


@given(st.data(), st.integers(0, 150), st.booleans())
def test_in_whatever_order_payments_are_taken_back_and_restored_the_same_is_left(
    data: st.DataObject, due: int, spent: bool
) -> None:
    """An event never comes before the one it undoes; all credit is spent at once, or none."""
    chains = data.draw(st.lists(st.lists(st.integers(1, 120), min_size=1, max_size=3), max_size=4))
    ends = set()
    for _ in range(2):
        order = data.draw(
            st.permutations([number for number, chain in enumerate(chains) for _ in chain])
        )
        standing, left = Standing(0, 0, 0), [list(chain) for chain in chains]
        for number in order:
            chain = chains[number]
            undone = (len(chain) - len(left[number])) % 2
            left[number].pop()
            free = 0 if spent else standing.credited_nano
            standing = standing.after(
                -chain[0] if undone else chain[0], due_minor=due, minor_nano=10, free_nano=free
            )
            lost = standing.lost_nano(10)
            assert lost >= 0
            assert not lost or not standing.settled_minor
        ends.add(standing if not spent else standing.paid_minor)
    assert len(ends) == 1


@pytest.mark.parametrize("change", [issuing.void, issuing.give_up])
def test_an_unknown_invoice_is_not_found(month: Month, change: object) -> None:
    def run(connection: Connection) -> None:
        change(connection, "inv_none")  # type: ignore[operator]

    with pytest.raises(InvoiceNotFound), transaction(month.database) as connection:
        run(connection)
