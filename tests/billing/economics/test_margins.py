"""Margins of a month on both databases: of each tenant's own calendar, its prices included."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from billing_cases import energy, tariff
from billing_world import add_tenant, settlement
from click.testing import CliRunner
from invoice_world import Month, at, priced
from sqlalchemy import Engine, update

from billing.economics import margins
from billing.economics.cli import economics
from billing.economics.margins import Margin, Rates
from billing.errors import InvalidPeriod
from billing.invoices import closing
from metering.cli_context import CliContext
from metering.database import snapshot, transaction
from metering.events import EnergyClass
from metering.tables import tenants

RATES = Rates("USD", Decimal("3.6"), Decimal("0.36"))
BLOCK_HOURS = 0.001
SEATS = tariff(
    name="seats",
    output={"per_million": "4"},
    period={"seat": {"model": "flat", "amount": "20"}},
)
JOULES = energy("measured", 36_000_000)


@pytest.fixture
def month(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    """`ten_1` and `ten_3` pay 20 a month beside what they use; `ten_2` and `ten_3` by New York."""
    made = Month(database, settlement(tmp_path), monkeypatch)
    with transaction(database) as connection:
        made.settlement._signer.register(connection)
        add_tenant(connection, "ten_1", credit="1000", pays=SEATS)
        add_tenant(connection, "ten_2", credit="1000", pays=priced())
        add_tenant(connection, "ten_3", credit="1000", pays=SEATS)
        zoned = update(tenants).where(tenants.c.id.in_(["ten_2", "ten_3"]))
        connection.execute(zoned.values(time_zone="America/New_York"))
    return made


def look(month: Month, label: str = "2026-11") -> dict[str, Margin]:
    with snapshot(month.database) as connection:
        found = margins.of_month(connection, RATES, label, BLOCK_HOURS)
    return {each.tenant_id: each for each in found}


def test_a_months_prices_are_charged_beside_what_was_used(month: Month) -> None:
    charged = month.serve("req_1", ended_us=at("2026-11-10 12:00"), energy=JOULES)
    one = look(month)["ten_1"]
    assert one.month_prices_nano == 20 * 10**9
    assert one.charged_nano == charged + 20 * 10**9
    assert one.joules == {EnergyClass.MEASURED: 36.0}
    assert one.margin == pytest.approx(
        one.charged_nano / 1e9 - (one.machine_cost or 0) - 36 / 3.6e6 * 0.36
    )
    # It is what an invoice of the month says.
    with snapshot(month.database) as connection:
        assert closing.preview(connection, "ten_1", "2026-11").charges_nano == one.charged_nano


def test_a_tenant_that_used_nothing_is_listed_where_it_pays_for_the_month(month: Month) -> None:
    found = look(month)
    assert list(found) == ["ten_1", "ten_3"]
    idle = found["ten_3"]
    assert (idle.requests, idle.charged_nano, idle.margin) == (0, 20 * 10**9, 20.0)
    assert (idle.machine_cost, idle.energy_cost) == (0.0, 0.0)


def test_a_month_is_of_each_tenants_own_calendar(month: Month) -> None:
    """Midnight in New York is 05:00 in UTC in December, and 04:00 in October."""
    for number, when in enumerate(["2026-11-01 03:59", "2026-11-01 04:00", "2026-12-01 04:59"]):
        for tenant_id in ("ten_1", "ten_2"):
            month.serve(f"req_{tenant_id}_{number}", tenant_id, ended_us=at(when))
    found = look(month)
    assert (found["ten_1"].requests, found["ten_2"].requests) == (2, 2)
    assert look(month, "2026-10")["ten_2"].requests == 1
    assert look(month, "2026-12")["ten_1"].requests == 1


def test_prices_of_a_month_are_of_no_other_time(month: Month) -> None:
    charged = month.serve("req_1", ended_us=at("2026-11-10 12:00"), energy=JOULES)
    span = (at("2026-11-01 00:00"), at("2026-12-01 00:00"))
    with snapshot(month.database) as connection:
        (found,) = margins.of_range(connection, RATES, *span, BLOCK_HOURS)
    assert (found.charged_nano, found.month_prices_nano) == (charged, None)


def test_the_command_takes_a_month_or_days(month: Month, tmp_path: Path) -> None:
    month.serve("req_1", ended_us=at("2026-11-10 12:00"), energy=JOULES)
    context = CliContext(tmp_path, month.database.url.render_as_string(hide_password=False))
    rates = ("margins", "--per-hour", "3.6", "--per-kwh", "0.36")

    def run(*more: str) -> str:
        done = CliRunner().invoke(economics, (*rates, *more), obj=context)
        assert done.exit_code == 0, done.output
        return done.output

    assert "(20 of them prices of the month)" in run("--period", "2026-11")
    whole = json.loads(run("--period", "2026-11", "--json"))
    assert whole["period"] == "2026-11"
    assert [each["month_prices_nano"] for each in whole["margins"]] == [20 * 10**9] * 2
    month.now_us = at("2026-11-30 00:00")
    assert "of the month" not in run("--days", "30")
    both = CliRunner().invoke(
        economics, (*rates, "--days", "3", "--period", "2026-11"), obj=context
    )
    assert both.exit_code == 2
    wrong = CliRunner().invoke(economics, (*rates, "--period", "soon"), obj=context)
    assert isinstance(wrong.exception, InvalidPeriod)
