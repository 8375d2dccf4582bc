"""Where a month begins and ends: to the microsecond, in the zone where the tenant lives."""

from __future__ import annotations

from pathlib import Path

import pytest
from billing_world import add_tenant, settlement
from invoice_world import HOUR_US, Month, at, per_service_period, priced
from sqlalchemy import Engine

from api import tenants
from billing.errors import InvalidPeriod
from billing.invoices.closing import Outcome
from metering.database import transaction

LAST_MOMENT = at("2026-12-01 00:00") - 1


def after_grace(month: Month) -> None:
    month.now_us = at("2026-12-04 00:00")


def test_the_last_microsecond_of_the_month_is_billed_in_it_and_the_next_is_not(
    month: Month,
) -> None:
    inside = month.serve("req_in", ended_us=LAST_MOMENT)
    month.serve("req_out", ended_us=LAST_MOMENT + 1)
    after_grace(month)
    assert per_service_period([month.issued("2026-11")]) == {"2026-11": inside}


def test_what_a_request_at_the_edge_counts_for_and_owes_is_in_its_own_month_too(
    database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = {"model": "package", "measure": "requests", "size": "1", "amount": "5"}
    month = Month(database, settlement(tmp_path), monkeypatch)
    with transaction(database) as connection:
        month.settlement._signer.register(connection)
        add_tenant(connection, credit="1000", pays=priced(each=each))
    charged = {}
    for request_id, ended_us in (("req_in", LAST_MOMENT), ("req_out", LAST_MOMENT + 1)):
        nano = month.serve(request_id, ended_us=ended_us, tokens=999_995)
        month.on_account(request_id, "ten_1", nano, at_us=ended_us)
        charged[request_id] = nano
    after_grace(month)
    november = month.issued("2026-11")
    assert per_service_period([november]) == {"2026-11": charged["req_in"] + 5 * 10**9}
    assert november.row.due_minor == 400 + 500
    month.now_us = at("2027-01-04 00:00")
    december = month.issued("2026-12")
    assert per_service_period([december]) == {"2026-12": charged["req_out"] + 5 * 10**9}
    assert december.row.due_minor == 400 + 500


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
