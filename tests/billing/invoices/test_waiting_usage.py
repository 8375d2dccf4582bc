"""Reported usage without a price keeps its month open, is named, and is billed once it has one."""

from __future__ import annotations

import pytest
from billing_world import add_tenant
from invoice_world import DAY_US, Month, at, priced
from outside_reports import report
from sqlalchemy import delete

from billing import catalogue, outside
from billing.errors import InvoiceConflict
from billing.invoices import checks, closing
from billing.invoices.closing import Outcome
from billing.reconciliation import Scope, reconcile
from billing.tables import tenant_tariffs
from metering.database import snapshot, transaction

TWENTY_IN_TEN_OUT = 20 * 1000 + 10 * 4000  # nano


@pytest.fixture
def unpriced(month: Month) -> Month:
    """Two events of October of a tenant without a tariff, and another tenant with usage."""
    with transaction(month.database) as connection:
        add_tenant(connection, "ten_2", credit="0", pays=priced())
        connection.execute(delete(tenant_tariffs).where(tenant_tariffs.c.tenant_id == "ten_2"))
    month.serve("req_1", ended_us=at("2026-10-20 00:00"))
    for number in range(2):
        report(
            month.database, number, at("2026-10-10 00:00"), tenant_id="ten_2", now_us=month.now_us
        )
    outside.settle_waiting(month.database, month.settlement)
    month.now_us = at("2026-11-05 00:00")
    return month


def differences(month: Month, scope: Scope) -> list[tuple[str, str]]:
    with snapshot(month.database) as connection:
        found = reconcile(connection, scope).differences
    return [
        (each.subject, each.actual) for each in found if each.check == "reported usage is rated"
    ]


def price(month: Month) -> None:
    with transaction(month.database) as connection:
        catalogue.assign(connection, "ten_2", priced().name, at("2026-09-01 00:00"))
    assert outside.settle_waiting(month.database, month.settlement).unrated == 0


def test_a_month_with_usage_without_a_price_is_left_open_for_its_tenant_alone(
    unpriced: Month,
) -> None:
    outcomes = {each.tenant_id: each for each in closing.close(unpriced.database, "2026-10")}
    assert outcomes["ten_1"].outcome is Outcome.ISSUED
    assert outcomes["ten_2"].outcome is Outcome.WAITING
    assert outcomes["ten_2"].fault == "2 reported events of it not rated yet"
    with pytest.raises(InvoiceConflict, match="ten_2 is left open: 2 reported events"):
        list(closing.close(unpriced.database, "2026-10", "ten_2"))
    for scope in (Scope(), Scope("ten_2"), Scope(None, "2026-10")):
        assert differences(unpriced, scope) == [("ten_2 2026-10", "2")]
    for scope in (Scope("ten_1"), Scope(None, "2026-11")):
        assert differences(unpriced, scope) == []
    assert "ten_2 2026-10" in {each.subject for each in checks.unbilled(unpriced.database)}
    price(unpriced)
    issued = unpriced.issued("2026-10", "ten_2")
    assert sum(line.amount_nano for line in issued.lines) == 2 * TWENTY_IN_TEN_OUT
    assert differences(unpriced, Scope()) == []


def test_what_was_closed_without_a_price_is_billed_with_the_next_month_once_it_has_one(
    unpriced: Month,
) -> None:
    (closed,) = closing.close(unpriced.database, "2026-10", "ten_2", despite_waiting=True)
    assert closed.outcome is Outcome.NOTHING
    price(unpriced)
    unpriced.now_us = at("2026-12-05 00:00")
    late = unpriced.issued("2026-11", "ten_2")
    assert {line.period for line in late.lines} == {"2026-10"}
    assert sum(line.amount_nano for line in late.lines) == 2 * TWENTY_IN_TEN_OUT


def test_usage_of_today_is_no_difference_before_somebody_could_see_to_it(unpriced: Month) -> None:
    unpriced.now_us = at("2026-11-01 00:00") + DAY_US
    assert differences(unpriced, Scope()) == []
    unpriced.now_us += 1
    assert differences(unpriced, Scope()) == [("ten_2 2026-10", "2")]
