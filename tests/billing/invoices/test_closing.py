"""Closing a month: what is billed, once, and what of late events becomes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import msgspec
import pytest
from billing_cases import tariff
from billing_world import add_tenant, balances, books_balance
from invoice_world import DAY_US, HOUR_US, Month, at, per_service_period, priced
from sqlalchemy import text, update
from sqlalchemy.exc import DatabaseError

from api import tenants
from billing import catalogue, receipts, refunds
from billing.errors import InvalidPeriod, InvoiceConflict
from billing.invoices import checks, closing, queries
from billing.invoices.closing import Outcome
from billing.ledger.accounts import Account, AccountKind
from billing.ledger.balances import balance
from billing.ledger.posting import Transfer, TransferKind, post
from billing.money import parse_nano
from metering.database import snapshot, transaction
from metering.events import EndedBy, RequestStatus
from metering.tables import tenants as tenants_table

LAST_MOMENT = at("2026-12-01 00:00") - 1


def after_grace(month: Month) -> None:
    month.now_us = at("2026-12-04 00:00")


def test_a_prepaid_month_is_an_invoice_with_nothing_to_pay(month: Month) -> None:
    charged = month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    charged += month.serve("req_2", ended_us=at("2026-11-11 12:00"), tokens=20_000)
    after_grace(month)
    invoice = month.issued("2026-11")
    assert invoice.row.state == "paid"
    assert invoice.row.number == "INV-000001"
    assert (invoice.row.total_minor, invoice.row.due_minor) == (8, 0)
    assert per_service_period([invoice]) == {"2026-11": charged} == {"2026-11": 84_040_000}
    # Cents that add up, although no line is a whole number of them.
    assert [(line.component, line.quantity, line.amount_minor) for line in invoice.lines] == [
        ("input", "40", 0),
        ("output", "21000", 8),
        ("credit", "1", -8),
    ]


def test_usage_on_account_is_due_and_moves_from_accrued_to_receivable(month: Month) -> None:
    when = at("2026-11-10 12:00")
    charged = month.serve("req_1", ended_us=when, tokens=10_000)
    month.on_account("req_1", "ten_1", charged, at_us=when)
    after_grace(month)
    invoice = month.issued("2026-11")
    assert (invoice.row.state, invoice.row.due_minor, invoice.remaining_minor) == ("final", 4, 4)
    with snapshot(month.database) as connection:
        found = balances(connection)
        assert found["receivable"] == -40_000_000
        assert "accrued" not in found
        assert found["rounding"] == 40_000_000 - charged
        books_balance(connection)


def test_the_last_microsecond_of_the_month_is_billed_in_it_and_the_next_is_not(
    month: Month,
) -> None:
    inside = month.serve("req_in", ended_us=LAST_MOMENT)
    month.serve("req_out", ended_us=LAST_MOMENT + 1)
    after_grace(month)
    assert per_service_period([month.issued("2026-11")]) == {"2026-11": inside}


def test_an_event_that_comes_within_the_grace_is_on_the_same_invoice(month: Month) -> None:
    first = month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    month.now_us = at("2026-12-01 01:00")
    (early,) = month.close("2026-11")
    assert early.outcome is Outcome.DRAFTED
    late = month.serve("req_late", ended_us=LAST_MOMENT)
    after_grace(month)
    assert per_service_period([month.issued("2026-11")]) == {"2026-11": first + late}
    with snapshot(month.database) as connection:
        assert len(queries.rows(connection, limit=10)) == 1  # the draft is gone


def test_an_event_after_the_close_is_a_line_of_the_next_invoice_and_edits_nothing(
    month: Month,
) -> None:
    first = month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    after_grace(month)
    november = month.issued("2026-11")
    late = month.serve("req_late", ended_us=LAST_MOMENT, tokens=5000)
    current = month.serve("req_2", ended_us=at("2026-12-10 12:00"))
    month.now_us = at("2027-01-04 00:00")
    december = month.issued("2026-12")
    assert month.invoice("INV-000001") == november
    assert per_service_period([november]) == {"2026-11": first}
    assert per_service_period([december]) == {"2026-11": late, "2026-12": current}
    month.now_us = at("2027-02-04 00:00")
    (january,) = month.close("2027-01")
    assert january.outcome is Outcome.NOTHING


def test_what_came_late_can_be_billed_at_once_by_invoices_of_corrections(month: Month) -> None:
    month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    after_grace(month)
    month.issued("2026-11")
    expected = {}
    for number in (1, 2):
        late = month.serve(f"req_late_{number}", ended_us=LAST_MOMENT, tokens=5000)
        closed = closing.correct(month.database, "2026-11", "ten_1")
        expected[f"correction-{number}"] = late
        assert per_service_period([month.invoice(closed.invoice_id)]) == {"2026-11": late}
    month.check()
    kinds = {invoice.row.kind for invoice in month.standing()}
    assert kinds == {"period", *expected}
    assert closing.correct(month.database, "2026-11", "ten_1").outcome is Outcome.NOTHING


def test_a_refund_after_the_close_corrects_the_month_of_its_request(month: Month) -> None:
    when = at("2026-11-10 12:00")
    charged = month.serve("req_1", ended_us=when, tokens=10_000)
    month.on_account("req_1", "ten_1", charged, at_us=when)
    after_grace(month)
    november = month.issued("2026-11")
    with transaction(month.database) as connection:
        receipts.adjust(
            connection,
            month.settlement._signer,
            adjustment_id="adj_1",
            request_id="req_1",
            reason="goodwill",
            amount_nano=-charged,
            review={},
        )
        accounts = (
            Account("ten_1", AccountKind.EARNINGS, "USD"),
            Account("ten_1", AccountKind.ACCRUED, "USD"),
        )
        refund = Transfer(
            "req_1/refund", TransferKind.REFUND, *accounts, charged, month.now_us, "req_1"
        )
        post(connection, "req_1/refund", [refund])
    with snapshot(month.database) as connection:
        before = balance(connection, "ten_1").available_nano
    month.now_us = at("2027-01-04 00:00")
    december = month.issued("2026-12")
    assert per_service_period([november, december]) == {}
    assert per_service_period([december]) == {"2026-11": -charged}
    assert (december.row.total_minor, december.row.due_minor) == (-4, 0)
    with snapshot(month.database) as connection:
        assert balance(connection, "ten_1").available_nano - before == charged


def test_a_month_that_was_not_closed_has_nothing_to_correct(month: Month) -> None:
    with pytest.raises(InvoiceConflict):
        closing.correct(month.database, "2026-11", "ten_1")


def test_period_prices_are_rated_over_all_usage_however_late_it_came(month: Month) -> None:
    tiers = [{"up_to": "10000", "per_million": "100"}, {"per_million": "50"}]
    with transaction(month.database) as connection:
        volume = {"model": "graduated", "measure": "output_tokens", "tiers": tiers}
        catalogue.publish(
            connection,
            priced(volume=volume, base={"model": "flat", "amount": "20"}),
            at("2026-11-01 00:00") + 1,
        )
    month.now_us = at("2026-11-02 00:00")
    used = month.serve("req_1", ended_us=at("2026-11-10 12:00"), tokens=8000)
    after_grace(month)
    november = month.issued("2026-11")
    prices = parse_nano("20") + parse_nano("0.8")
    assert per_service_period([november]) == {"2026-11": used + prices}
    assert november.row.due_minor == 2080
    late = month.serve("req_late", ended_us=LAST_MOMENT, tokens=4000)
    closed = closing.correct(month.database, "2026-11", "ten_1")
    month.check()
    # Of the late tokens 2,000 still fall into the first tier.
    more = parse_nano("0.2") + parse_nano("0.1")
    assert per_service_period([month.invoice(closed.invoice_id)]) == {"2026-11": late + more}


def test_quantities_with_decimals_are_added_up_exactly(month: Month) -> None:
    information = {"per_million": "1", "cap_bits_per_token": "16000"}
    bits = msgspec.structs.replace(tariff(information=information), name="bits")
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", credit="100", pays=bits)
    parts = [1, 333_333, 7_000_001, 999_999, 12_345_678_901]
    for number, ubits in enumerate(parts):
        when = at("2026-11-10 12:00")
        month.serve(f"req_{number}", "ten_2", ended_us=when, information_ubits=ubits)
    after_grace(month)
    line = month.issued("2026-11", "ten_2").lines[0]
    assert line.component == "information"
    assert Decimal(line.quantity) == Decimal(sum(parts)) / 10**6


def test_a_month_with_charges_that_was_passed_over_is_named_until_it_is_closed(
    month: Month,
) -> None:
    month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    after_grace(month)
    month.issued("2026-11")
    # As an engine of another house reports it: long after, into a month that nobody closed.
    month.serve("req_old", ended_us=at("2026-09-10 12:00"))
    with snapshot(month.database) as connection:
        (found,) = checks.check(connection)
    assert (found.check, found.subject) == ("months are closed in their order", "ten_1 2026-09")
    month.issued("2026-09")


def test_closing_again_issues_nothing_again(month: Month) -> None:
    month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    after_grace(month)
    month.issued("2026-11")
    assert [closed.outcome for closed in month.close("2026-11")] == [Outcome.BEFORE]
    assert len(month.standing()) == 1


def test_two_that_close_at_once_issue_one_invoice_of_each_tenant(month: Month) -> None:
    with transaction(month.database) as connection:
        for number in range(2, 6):
            add_tenant(connection, f"ten_{number}", credit="1", pays=priced())
    for number in range(1, 6):
        month.serve(f"req_{number}", f"ten_{number}", ended_us=at("2026-11-10 12:00"))
    after_grace(month)

    def close(_: int) -> list[Outcome]:
        return [closed.outcome for closed in closing.close(month.database, "2026-11")]

    with ThreadPoolExecutor(3) as closers:
        outcomes = [outcome for found in closers.map(close, range(3)) for outcome in found]
    assert outcomes.count(Outcome.ISSUED) == 5
    month.check()
    numbers = sorted(
        invoice.row.number or ""
        for tenant in range(1, 6)
        for invoice in month.standing(f"ten_{tenant}")
    )
    assert numbers == [f"INV-{place:06d}" for place in range(1, 6)]


def test_a_close_that_crashes_leaves_neither_a_gap_nor_a_double(month: Month) -> None:
    month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    after_grace(month)

    def crash(_connection: object, _invoice_id: str) -> None:
        raise RuntimeError("the process dies before its commit")

    with pytest.raises(RuntimeError):
        list(closing.close(month.database, "2026-11", witness=crash))
    late = month.serve("req_2", ended_us=LAST_MOMENT)
    invoice = month.issued("2026-11")
    assert invoice.row.number == "INV-000001"
    assert per_service_period([invoice])["2026-11"] > late


def test_a_month_is_not_closed_before_it_is_over_where_the_tenant_lives(month: Month) -> None:
    with transaction(month.database) as connection:
        tenants.change(connection, "ten_1", time_zone="America/New_York")
    month.now_us = at("2026-12-01 04:59")
    with pytest.raises(InvalidPeriod):
        month.close("2026-11", "ten_1")
    assert [closed.outcome for closed in month.close("2026-11")] == [Outcome.RUNNING]
    month.now_us = at("2026-12-01 05:00")
    assert [closed.outcome for closed in month.close("2026-11")] == [Outcome.NOTHING]


def test_a_tenant_that_moves_between_time_zones_is_billed_without_gap_or_overlap(
    month: Month,
) -> None:
    after_grace(month)
    edge = at("2026-12-01 00:00")
    early = month.serve("req_1", ended_us=edge - HOUR_US)
    month.issued("2026-11")
    with transaction(month.database) as connection:
        tenants.change(connection, "ten_1", time_zone="America/New_York")
    # By New York's clock this is still November, which is closed.
    between = month.serve("req_2", ended_us=edge + HOUR_US)
    month.now_us = at("2027-01-05 00:00")
    december = month.issued("2026-12")
    assert december.row.start_us == edge
    assert december.row.end_us == at("2027-01-01 00:00", "America/New_York")
    assert per_service_period(month.standing()) == {"2026-11": early, "2026-12": between}


def test_test_mode_and_idle_tenants_get_no_invoice(month: Month) -> None:
    after_grace(month)
    assert [closed.outcome for closed in month.close("2026-11")] == [Outcome.NOTHING]
    assert month.standing() == []


def test_a_preview_is_what_closing_would_issue_and_changes_nothing(month: Month) -> None:
    month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    month.now_us = at("2026-11-15 00:00")
    with snapshot(month.database) as connection:
        preview = queries.of_draft(closing.preview(connection, "ten_1", "2026-11"))
    after_grace(month)
    invoice = month.issued("2026-11")
    assert preview.lines == invoice.lines
    assert preview.row.number is None


def test_tax_is_due_even_where_credit_paid_the_usage(month: Month) -> None:
    month.terms("ten_1", name="Acme GmbH", tax_percent=19)
    month.serve("req_1", ended_us=at("2026-11-10 12:00"), tokens=250_000)
    after_grace(month)
    invoice = month.issued("2026-11")
    row = invoice.row
    assert (row.subtotal_minor, row.tax_minor, row.total_minor) == (100, 19, 119)
    assert (row.credit_minor, row.due_minor) == (100, 19)
    assert invoice.lines[-2].detail == "19 %"


def test_one_setting_of_grace_rules_metering_and_invoicing(month: Month) -> None:
    month.terms(name="Operator", grace_us=5 * DAY_US)
    month.serve("req_1", ended_us=LAST_MOMENT)
    after_grace(month)
    assert [closed.outcome for closed in month.close("2026-11")] == [Outcome.DRAFTED]
    month.now_us = at("2026-12-06 00:00")
    assert [closed.outcome for closed in month.close("2026-11")] == [Outcome.ISSUED]


def test_what_an_allowance_gives_back_goes_into_credit(month: Month) -> None:
    with transaction(month.database) as connection:
        catalogue.publish(
            connection,
            priced(free={"model": "allowance", "component": "output", "free": "1000"}),
            at("2026-11-02 00:00"),
        )
    month.now_us = at("2026-11-03 00:00")
    month.serve("req_1", ended_us=at("2026-11-10 12:00"), tokens=2000)
    with snapshot(month.database) as connection:
        before = balance(connection, "ten_1").available_nano
    after_grace(month)
    invoice = month.issued("2026-11")
    with snapshot(month.database) as connection:
        assert balance(connection, "ten_1").available_nano - before == parse_nano("0.004")
    assert invoice.row.returned_nano == parse_nano("0.004")
    assert invoice.row.due_minor == 0


def test_an_allowance_gives_no_more_back_than_requests_paid(month: Month) -> None:
    free = {
        f"free-{component}": {"model": "allowance", "component": component, "free": "1000"}
        for component in ("input", "output")
    }
    with transaction(month.database) as connection:
        catalogue.publish(connection, priced(**free), at("2026-11-02 00:00"))
    month.now_us = at("2026-11-03 00:00")
    charged = month.serve("req_1", ended_us=at("2026-11-10 12:00"), tokens=1000)
    with transaction(month.database) as connection:
        refunds.correct(
            connection,
            month.settlement._signer,
            tenant_id="ten_1",
            request_id="req_1",
            amount_nano=charged - 1000,
            reference="r",
            reason="goodwill",
        )
    after_grace(month)
    invoice = month.issued("2026-11")
    assert invoice.row.returned_nano == 1000
    assert sum(line.amount_nano for line in invoice.lines if line.kind != "credit") == 0


def test_what_is_waived_costs_nothing_in_the_prices_of_the_month_either(month: Month) -> None:
    counted = {"model": "package", "measure": "requests", "size": "1", "amount": "1"}
    read = {"model": "package", "measure": "input_tokens", "size": "1", "amount": "1"}
    with transaction(month.database) as connection:
        catalogue.publish(connection, priced(counted=counted, read=read), at("2026-11-02 00:00"))
    month.now_us = at("2026-11-03 00:00")
    ours = {"units": (), "unattached_tokens": 0, "ended_by": EndedBy.OPERATOR}
    when = at("2026-11-10 12:00")
    assert month.serve("req_1", ended_us=when, status=RequestStatus.FAILED, **ours) == 0
    # One that its tenant cancelled before its first token pays for its input.
    assert month.serve("req_2", ended_us=when, units=(), unattached_tokens=0) > 0
    after_grace(month)
    lines = month.issued("2026-11").lines
    assert [line.quantity for line in lines if line.kind == "period"] == ["1", "20"]


FORGERIES = (
    "UPDATE invoices SET due_minor = due_minor + 1, credit_minor = credit_minor - 1",
    "UPDATE invoices SET number = 'X-1'",
    "UPDATE invoices SET state = 'draft', number = NULL, finalised_at_us = NULL",
    "DELETE FROM invoices",
    "UPDATE invoice_lines SET amount_minor = 0",
    "DELETE FROM invoice_lines",
    "INSERT INTO invoice_lines SELECT invoice_id, line + 100, tenant_id, kind, component,"
    " detail, quantity, unit, unit_price, tariff_version_id, period, amount_nano, amount_minor"
    " FROM invoice_lines",
    # A second one of the same period.
    "INSERT INTO invoices SELECT 'inv_x', tenant_id, period, kind, currency, minor_nano,"
    " start_us, end_us, time_zone, 'draft', NULL, subtotal_minor, tax_minor, total_minor,"
    " credit_minor, due_minor, charges_nano, returned_nano, issuer, customer, created_at_us,"
    " NULL, NULL, NULL FROM invoices",
)


def test_the_database_refuses_to_edit_a_final_invoice_or_to_bill_a_period_twice(
    month: Month,
) -> None:
    month.serve("req_1", ended_us=at("2026-11-10 12:00"), tokens=10_000)
    after_grace(month)
    month.issued("2026-11")
    for statement in FORGERIES:
        with pytest.raises(DatabaseError), transaction(month.database) as connection:
            connection.execute(text(statement))


def test_a_suspended_tenant_is_billed_for_what_it_used(month: Month) -> None:
    charged = month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    with transaction(month.database) as connection:
        connection.execute(update(tenants_table).values(suspended=True))
    after_grace(month)
    assert per_service_period([month.issued("2026-11")]) == {"2026-11": charged}
