"""Closing a month: what is billed, once, and what of late events becomes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from billing_cases import tariff
from billing_world import add_tenant, balances, books_balance
from click.testing import CliRunner
from invoice_world import DAY_US, Month, at, per_service_period, priced
from sqlalchemy import Connection, text, update
from sqlalchemy.exc import DatabaseError

from billing import catalogue, overrides, refunds
from billing.errors import InvalidPeriod
from billing.invoices import closing, drafting, queries
from billing.invoices.cli import invoice
from billing.invoices.closing import Outcome
from billing.invoices.drafting import Draft
from billing.periods import Period
from metering.cli_context import CliContext
from metering.database import snapshot, transaction
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


def test_a_tenant_that_cannot_be_closed_keeps_no_other_from_it(
    month: Month, tmp_path: Path
) -> None:
    with transaction(month.database) as connection:
        for tenant_id in ("ten_2", "ten_3"):
            add_tenant(connection, tenant_id, pays=priced())
    for tenant_id in ("ten_1", "ten_2", "ten_3"):
        month.serve(f"req_{tenant_id}", tenant_id, ended_us=at("2026-11-10 12:00"))
    with transaction(month.database) as connection:
        nowhere = update(tenants_table).where(tenants_table.c.id == "ten_2")
        connection.execute(nowhere.values(time_zone="Mars/Olympus_Mons"))
    after_grace(month)
    url = month.database.url.render_as_string(hide_password=False)
    context = CliContext(home=tmp_path, database_url=url)
    done = CliRunner().invoke(invoice, ["close", "--period", "2026-11"], obj=context)
    assert done.exit_code == 1
    assert "ten_2: failed: ZoneInfoNotFoundError" in done.output
    assert "1 failed, 2 issued" in done.output
    with pytest.raises(InvalidPeriod):
        list(closing.close(month.database, "2026-13"))


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


def test_a_close_that_another_was_faster_than_says_so_and_leaves_what_came_since(
    month: Month, monkeypatch: pytest.MonkeyPatch
) -> None:
    month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    after_grace(month)
    draw_up = drafting.draft

    def draw_up_after_the_other(_: Connection, tenant_id: str, period: Period) -> Draft:
        monkeypatch.setattr(drafting, "draft", draw_up)
        assert month.issued("2026-11").row.state == "paid"
        month.serve("req_2", ended_us=LAST_MOMENT, tokens=20_000)
        with snapshot(month.database) as connection:
            return draw_up(connection, tenant_id, period)

    monkeypatch.setattr(drafting, "draft", draw_up_after_the_other)
    (closed,) = closing.close(month.database, "2026-11", "ten_1")
    assert closed.outcome is Outcome.BEFORE
    corrected = closing.correct(month.database, "2026-11", "ten_1")
    assert month.invoice(corrected.invoice_id).row.total_minor == 8
    month.check()


def test_a_close_that_crashes_leaves_neither_a_gap_nor_a_double(month: Month) -> None:
    month.serve("req_1", ended_us=at("2026-11-10 12:00"))
    after_grace(month)

    def crash(_connection: object, _invoice_id: str) -> None:
        raise SystemExit("the process dies before its commit")

    with pytest.raises(SystemExit):
        list(closing.close(month.database, "2026-11", witness=crash))
    late = month.serve("req_2", ended_us=LAST_MOMENT)
    invoice = month.issued("2026-11")
    assert invoice.row.number == "INV-000001"
    assert per_service_period([invoice])["2026-11"] > late


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


@pytest.mark.parametrize("is_over", [False, True])
def test_a_draft_of_a_month_that_came_to_nothing_goes_with_its_close(
    month: Month, is_over: bool
) -> None:
    month.now_us = at("2026-12-02 00:00")
    with transaction(month.database) as connection:
        priced_month = {"period": {"base": {"model": "flat", "amount": "5"}}}
        overrides.override(connection, "ten_1", priced_month, at("2026-11-02 00:00"))
    (drafted,) = month.close("2026-11", "ten_1")
    assert drafted.outcome is Outcome.DRAFTED
    with transaction(month.database) as connection:  # the price is taken back
        overrides.override(connection, "ten_1", {"period": None}, at("2026-11-03 00:00"))
    if is_over:
        after_grace(month)
    (closed,) = month.close("2026-11", "ten_1")
    assert (closed.outcome, closed.invoice_id) == (Outcome.NOTHING, None)
    with snapshot(month.database) as connection:
        assert queries.rows(connection, tenant_id="ten_1", limit=10) == []


def test_usage_that_costs_nothing_takes_no_number_and_what_was_given_back_does(
    month: Month,
) -> None:
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", credit="1", pays=priced())
        free = tariff(name="free", input={"per_million": "0"}, output={"per_million": "0"})
        catalogue.publish(connection, free, 0)
        catalogue.assign(connection, "ten_2", "free", at("2026-11-01 00:00"))
    when = at("2026-11-10 12:00")
    assert month.serve("req_free", "ten_2", ended_us=when) == 0
    charged = month.serve("req_1", ended_us=when, tokens=20_000)
    with transaction(month.database) as connection:
        signer = month.settlement._signer
        assert charged == refunds.correct(
            connection,
            signer,
            tenant_id="ten_1",
            request_id="req_1",
            amount_nano=None,
            reference="r",
            reason="ours",
        )
    after_grace(month)
    outcomes = {each.tenant_id: each.outcome for each in month.close("2026-11")}
    assert outcomes == {"ten_1": Outcome.ISSUED, "ten_2": Outcome.NOTHING}
    (invoice,) = month.standing()
    assert (invoice.row.number, invoice.row.total_minor) == ("INV-000001", 0)
