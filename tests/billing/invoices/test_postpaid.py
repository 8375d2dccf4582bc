"""Usage on account, from its hold to the invoice that makes it a receivable."""

from __future__ import annotations

from billing_cases import summary, unit
from billing_world import FAR_US, add_request, add_tenant, balances, books_balance, ended
from invoice_world import Month, at, per_service_period, priced

from billing.gate import HoldGate
from billing.invoices import paying
from billing.ledger import balances as ledger_balances
from billing.ledger import terms
from billing.money import parse_nano
from metering.database import snapshot, transaction


def test_what_a_tenant_owes_is_accrued_until_it_is_invoiced_and_held_usage_is_on_no_invoice(
    month: Month,
) -> None:
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", credit="0", pays=priced())
        terms.change(connection, "ten_2", receivable_limit_nano=parse_nano("100"))
    used = month.serve("req_1", "ten_2", ended_us=at("2026-11-10 12:00"), tokens=1_000_000)
    with transaction(month.database) as connection:  # runs over the end of the month
        admitted = add_request(connection, "req_2", "ten_2", max_tokens=500_000)
        HoldGate().admit(connection, admitted, expires_at_us=FAR_US)
    month.now_us = at("2026-12-04 00:00")
    november = month.issued("2026-11", "ten_2")
    assert per_service_period([november]) == {"2026-11": used}
    assert november.row.due_minor == 400
    with snapshot(month.database) as connection:
        books = balances(connection, "ten_2")
        owed = ledger_balances.balance(connection, "ten_2").receivable_nano
        assert books["receivable"] == -parse_nano("4")
        assert books["accrued"] == -books["holds"]
        assert owed == parse_nano("4") + books["holds"]
    with transaction(month.database) as connection:
        final = summary(
            unit(250_000), request_id="req_2", tenant_id="ten_2", ended_at_us=at("2026-12-04 00:00")
        )
        ended(connection, month.settlement, final)
        assert november.row.id is not None
        paying.pay(connection, november.row.id, 400, method="manual", cause_id="wire")
    month.now_us = at("2027-01-04 00:00")
    december = month.issued("2026-12", "ten_2")
    assert december.row.due_minor == 100
    with snapshot(month.database) as connection:
        books = balances(connection, "ten_2")
        assert books["receivable"] == -parse_nano("1")
        assert "accrued" not in books
        books_balance(connection)
