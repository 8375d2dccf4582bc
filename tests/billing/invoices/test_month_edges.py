"""Where a month begins and ends: to the microsecond, in the zone where the tenant lives."""

from __future__ import annotations

from pathlib import Path

import pytest
from billing_world import add_tenant, settlement
from invoice_world import HOUR_US, Month, at, per_service_period, priced
from sqlalchemy import Connection, Engine, update

from api import tenants
from billing.differences import Difference
from billing.errors import InvalidPeriod
from billing.invoices import checks, closed_periods, closing
from billing.invoices.closing import Outcome
from billing.invoices.tables import billing_periods
from billing.periods import Period
from metering.database import snapshot, transaction

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


@pytest.mark.parametrize("final", [True, False], ids=["issued", "drafted"])
def test_a_tenant_that_moves_while_its_month_is_closed_has_every_hour_in_one_month(
    month: Month, monkeypatch: pytest.MonkeyPatch, final: bool
) -> None:
    """The span that a close has read is another one by the time that it writes."""
    month.now_us = at("2027-01-05 00:00") if final else at("2026-12-02 00:00")
    edge = at("2026-12-01 00:00")
    between = month.serve("req_1", ended_us=edge + HOUR_US, tokens=500_000)
    read = closing.period_of
    moved: list[Period] = []

    def then_moved(connection: Connection, tenant_id: str, label: str) -> Period:
        found = read(connection, tenant_id, label)
        if not moved:
            moved.append(found)
            with transaction(month.database) as other:
                tenants.change(other, tenant_id, time_zone="America/New_York")
            if final:
                list(closing.close(month.database, "2026-12", tenant_id))
        return found

    monkeypatch.setattr(closing, "period_of", then_moved)
    closed = month.close("2026-11", "ten_1")[0]
    assert moved[0].end_us == edge
    november = month.invoice(closed.invoice_id)
    assert november.row.end_us == at("2026-12-01 00:00", "America/New_York")
    assert per_service_period([november]) == {"2026-11": between}


def test_neighbouring_months_that_do_not_meet_are_named(month: Month) -> None:
    after_grace(month)
    with transaction(month.database) as connection:
        for label in ("2026-09", "2026-10", "2026-12"):  # November is nobody's neighbour yet
            span = closed_periods.span(connection, "ten_1", label, "UTC")
            closed_periods.begin(connection, "ten_1", span, month.now_us)
    month.check()
    with transaction(month.database) as connection:
        connection.execute(
            update(billing_periods)
            .where(billing_periods.c.label == "2026-10")
            .values(start_us=billing_periods.c.start_us + HOUR_US)
        )
    with snapshot(month.database) as connection:
        (found,) = checks.check(connection)
    assert found == Difference(
        "neighbouring months meet",
        "ten_1 2026-09 and 2026-10",
        str(at("2026-10-01 00:00")),
        str(at("2026-10-01 01:00")),
    )
