"""What comes late: within the grace, after the close, and as a correction at once."""

from __future__ import annotations

import pytest
from invoice_world import Month, at, per_service_period

from billing import receipts
from billing.errors import InvoiceConflict
from billing.invoices import checks, closing, queries
from billing.invoices.closing import Outcome
from billing.ledger.accounts import Account, AccountKind
from billing.ledger.balances import balance
from billing.ledger.posting import Transfer, TransferKind, post
from metering.database import snapshot, transaction

LAST_MOMENT = at("2026-12-01 00:00") - 1


def after_grace(month: Month) -> None:
    month.now_us = at("2026-12-04 00:00")


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
