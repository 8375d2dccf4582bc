"""Each month of service is taxed by its own rate, and what corrects it undoes just its tax."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from billing_world import balances
from invoice_world import Month, at

from billing import refunds
from billing.differences import Difference
from billing.invoices import checks, closing, drafting, issuing, parties
from billing.invoices.lines import InvoiceLine
from billing.invoices.queries import Invoice
from billing.invoices.taxes import Rate
from billing.ledger.accounts import Account, AccountKind
from billing.ledger.posting import Transfer, TransferKind, post
from metering.database import snapshot, transaction

CENT = 10**7


def rated(month: Month, percent: str, from_us: int | None = None) -> None:
    found = parties.Customer("Acme", tax_percent=Decimal(percent))
    with transaction(month.database) as connection:
        parties.set_customer(connection, "ten_1", found, from_us)


def used(month: Month, request_id: str, label: str, *, euros: int = 100) -> None:
    ended_us = at(f"{label}-15 12:00")
    # 1 a million tokens in, 4 a million out.
    month.serve(request_id, ended_us=ended_us, tokens=euros * 250_000, input_tokens=0)


def refund(month: Month, request_id: str) -> None:
    with transaction(month.database) as connection:
        refunds.correct(
            connection,
            month.settlement._signer,
            tenant_id="ten_1",
            request_id=request_id,
            amount_nano=None,
            reference=request_id,
            reason="goodwill",
        )


def taxes(invoice: Invoice) -> list[tuple[str, str, str, int]]:
    """The service month, the rate, what is taxed and the tax, of every line of tax."""
    found = [line for line in invoice.lines if line.kind == "tax"]
    assert all(line.amount_nano == line.amount_minor * CENT for line in found)
    assert sum(line.amount_minor for line in found) == invoice.row.tax_minor
    assert sum(line.amount_minor for line in invoice.lines) == invoice.row.due_minor
    return [(line.period, line.detail, line.quantity, line.amount_minor) for line in found]


@pytest.mark.parametrize("at_once", [True, False], ids=["corrected", "on the next invoice"])
@pytest.mark.parametrize(("before", "after"), [("0", "20"), ("20", "0"), ("19", "16")])
def test_what_is_given_back_of_a_month_takes_with_it_the_tax_that_was_charged(
    month: Month, before: str, after: str, at_once: bool
) -> None:
    rated(month, before)
    used(month, "req_1", "2026-10")
    month.now_us = at("2026-11-05 00:00")
    charged = month.issued("2026-10").row
    assert charged.tax_minor == 100 * int(before)
    rated(month, after)
    refund(month, "req_1")
    if at_once:
        closed = closing.correct(month.database, "2026-10", "ten_1")
        given = month.invoice(closed.invoice_id)
        month.check()
    else:
        month.now_us = at("2026-12-05 00:00")
        given = month.issued("2026-11")
    assert (given.row.subtotal_minor, given.row.tax_minor) == (-10_000, -charged.tax_minor)
    if before != "0":
        assert taxes(given) == [("2026-10", f"{before} %", "-100", -charged.tax_minor)]
    with snapshot(month.database) as connection:
        assert balances(connection).get("tax", 0) == 0


def test_an_invoice_taxes_each_month_of_service_by_its_own_rate(month: Month) -> None:
    rated(month, "0")
    used(month, "req_1", "2026-10")
    month.now_us = at("2026-11-05 00:00")
    month.issued("2026-10")
    rated(month, "20", at("2026-11-01 00:00"))
    used(month, "req_late", "2026-10", euros=10)
    used(month, "req_2", "2026-11", euros=50)
    month.now_us = at("2026-12-05 00:00")
    november = month.issued("2026-11")
    assert taxes(november) == [("2026-11", "20 %", "50", 1000), ("2026-10", "0 %", "10", 0)]
    # What the line of nothing says is kept: October was billed on it, too.
    refund(month, "req_late")
    refund(month, "req_2")
    month.now_us = at("2027-01-05 00:00")
    december = month.issued("2026-12")
    assert taxes(december) == [("2026-10", "0 %", "-10", 0), ("2026-11", "20 %", "-50", -1000)]


def test_a_month_is_taxed_by_the_rate_at_its_last_moment_whenever_it_is_closed(
    month: Month,
) -> None:
    rated(month, "19")
    for number, label in enumerate(("2026-10", "2026-11", "2026-12")):
        used(month, f"req_{number}", label)
    month.now_us = at("2026-11-01 00:00")
    rated(month, "16")
    rated(month, "17.5", at("2027-01-01 00:00") - 1)
    month.now_us = at("2027-01-10 00:00")
    assert taxes(month.issued("2026-10")) == [("2026-10", "19 %", "100", 1900)]
    november = month.issued("2026-11")
    assert taxes(november) == [("2026-11", "16 %", "100", 1600)]
    assert november.customer.tax_percent == 16
    assert taxes(month.issued("2026-12")) == [("2026-12", "17.5 %", "100", 1750)]


def test_a_rate_that_was_forgotten_is_set_from_when_on_it_was_in_force(month: Month) -> None:
    rated(month, "0")
    used(month, "req_1", "2026-10")
    month.on_account("req_1", "ten_1", 100 * 10**9, at_us=at("2026-10-15 12:00"))
    month.now_us = at("2026-11-05 00:00")
    wrong = month.issued("2026-10")
    rated(month, "19", at("2026-10-01 00:00"))
    with transaction(month.database) as connection:
        issuing.void(connection, str(wrong.row.id))
    assert taxes(month.issued("2026-10")) == [("2026-10", "19 %", "100", 1900)]


def test_a_new_name_leaves_the_rates_that_are_to_come(month: Month) -> None:
    rated(month, "19")
    rated(month, "21", at("2027-01-01 00:00"))
    with transaction(month.database) as connection:
        found = parties.customer(connection, "ten_1")
        assert found.tax_percent == 19
        parties.set_customer(connection, "ten_1", parties.Customer("New", tax_percent=Decimal(19)))
        later = parties.customer(connection, "ten_1", at("2027-01-01 00:00"))
    assert (later.name, later.tax_percent) == ("New", 21)


def test_a_month_billed_in_parts_is_taxed_as_a_whole(month: Month) -> None:
    """Two cents at 19 % each come to no tax; three of them to one cent, on the last."""
    rated(month, "19")
    for number in range(3):
        month.serve(f"req_{number}", ended_us=at("2026-10-15 12:00"), tokens=5_000, input_tokens=0)
        month.now_us = at("2026-11-05 00:00") + number
        if number == 0:
            found = month.issued("2026-10")
        else:
            found = month.invoice(closing.correct(month.database, "2026-10", "ten_1").invoice_id)
            month.check()
        assert taxes(found) == [("2026-10", "19 %", "0.02", 1 if number == 1 else 0)]


def test_one_line_of_tax_on_an_invoice_of_several_months_is_of_all_that_it_charges(
    month: Month, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As invoices read on which months had no lines of tax of their own."""
    made = drafting._taxes

    def joined(*given: Any) -> list[InvoiceLine]:
        first, *others = made(*given)
        nano = sum(line.amount_nano for line in (first, *others))
        return [replace(first, amount_nano=nano, amount_minor=nano // CENT)]

    rated(month, "19")
    used(month, "req_1", "2026-10")
    month.now_us = at("2026-11-05 00:00")
    month.issued("2026-10")
    used(month, "req_late", "2026-10", euros=10)
    used(month, "req_2", "2026-11", euros=50)
    month.now_us = at("2026-12-05 00:00")
    with monkeypatch.context() as patch:
        patch.setattr(drafting, "_taxes", joined)
        (line,) = taxes(month.issued("2026-11"))
    assert line[-1] == 190 + 950
    rated(month, "7")
    refund(month, "req_late")
    refund(month, "req_2")
    month.now_us = at("2027-01-05 00:00")
    december = month.issued("2026-12")
    assert taxes(december) == [("2026-10", "19 %", "-10", -190), ("2026-11", "19 %", "-50", -950)]


def test_tax_by_another_rate_than_its_months_is_named_and_corrected(
    month: Month, monkeypatch: pytest.MonkeyPatch
) -> None:
    rated(month, "0")
    used(month, "req_1", "2026-10")
    month.now_us = at("2026-11-05 00:00")
    month.issued("2026-10")
    refund(month, "req_1")
    with monkeypatch.context() as patch:
        patch.setattr(drafting.taxes, "owed", lambda *_: (Rate("VAT", Decimal(20)), -2000))
        closing.correct(month.database, "2026-10", "ten_1")
    with snapshot(month.database) as connection:
        (found,) = checks.check(connection)
    name = "tax of a month = its rate of its charges"
    assert found == Difference(name, "ten_1 2026-10", "0", "-2000")
    mended = month.invoice(closing.correct(month.database, "2026-10", "ten_1").invoice_id)
    assert taxes(mended) == [("2026-10", "0 %", "0", 2000)]
    month.check()


def test_tax_that_is_booked_beside_the_invoices_is_named(month: Month) -> None:
    rated(month, "19")
    used(month, "req_1", "2026-10")
    month.now_us = at("2026-11-05 00:00")
    issued = month.issued("2026-10")
    with transaction(month.database) as connection:
        tax = Account("ten_1", AccountKind.TAX, "USD")
        earnings = Account("ten_1", AccountKind.EARNINGS, "USD")
        move = Transfer("odd", TransferKind.TAX, tax, earnings, CENT, month.now_us)
        post(connection, "odd", [move])
    with snapshot(month.database) as connection:
        (found,) = checks.check(connection)
    owed = issued.row.tax_minor * CENT
    assert found == Difference("booked tax = tax of invoices", "ten_1", str(owed), str(owed - CENT))
