"""Costs and margins on both databases: computed by hand from steps and requests on record."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from pathlib import Path

import pytest
from billing_cases import energy, summary, tariff, unit
from billing_world import add_request, add_tenant, ended, settlement
from click.testing import CliRunner
from sqlalchemy import Engine

from billing.economics import costs
from billing.economics.cli import economics
from billing.economics.costs import Economics
from billing.economics.margins import Rates
from billing.gate import HoldGate
from engine.records import Work
from metering import event_log
from metering.bodies import BlockBody, BlockRun, state
from metering.cli_context import CliContext
from metering.database import snapshot, transaction
from metering.events import EnergyClass
from metering.queries import step_runs

MS = 1_000_000
MINUTE_NS = 60 * 10**9
RATES = Rates("USD", Decimal("3.6"), Decimal("0.36"))
LEVELS = {1: 10, 2: 12, 4: 14}  # milliseconds a step: alpha 0.2, exactly
END_US = 2**52


def block(request_id: str, index: int, step: int, start_ns: int, ms: int) -> BlockBody:
    return BlockBody(
        request_id=request_id,
        block_index=index,
        engine_epoch="engine-1",
        step_index=step,
        start_ns=start_ns,
        end_ns=start_ns + ms * MS,
        token_ids=(7, 8),
        pieces=(b"te", b"xt"),
        logprobs_unats=(-1, -1),
        entropies_unats=(1, 1),
        information_ubits=0,
        drafted_nodes=0,
        drafted_depth=0,
        verified_nodes=1,
        accepted_tokens=0,
        cached_tokens=0,
        anchor=None,
        work=Work(),
        withheld_tokens=0,
    )


@pytest.fixture
def served(database: Engine, tmp_path: Path) -> Engine:
    """Four requests of two tenants that shared steps: three minutes at each of three levels.

    One step in each minute took ten times as long, beside somebody's long prompt.
    """
    settling = settlement(tmp_path)
    with transaction(database) as connection:
        settling._signer.register(connection)
        pays = tariff(output={"per_million": "1000"})
        for tenant_id in ("ten_1", "ten_2"):
            add_tenant(connection, tenant_id, credit="10", pays=pays)
        chosen = [f"req_{number}" for number in range(4)]
        for number, request_id in enumerate(chosen):
            tenant_id = "ten_2" if number == 3 else "ten_1"
            admitted = add_request(connection, request_id, tenant_id, max_tokens=1000)
            HoldGate().admit(connection, admitted, expires_at_us=END_US)
        indexes = dict.fromkeys(chosen, 0)
        step = 0
        for minute, concurrency in enumerate([*LEVELS] * 3):
            for place in range(5):
                ms = LEVELS[concurrency] * (10 if place == 4 else 1)
                events = []
                start_ns = minute * MINUTE_NS + place * MINUTE_NS // 10
                for request_id in chosen[:concurrency]:
                    body = block(request_id, indexes[request_id], step, start_ns, ms)
                    indexes[request_id] += 1
                    owner = "ten_2" if request_id == "req_3" else "ten_1"
                    events.append(state(BlockRun((body,)), owner, 1))
                event_log.append(connection, events)
                step += 1
        for request_id in chosen:
            final = summary(
                unit(400), unit(100), request_id=request_id, energy=energy("measured", 36_000_000)
            )
            ended(connection, settling, final)
    return database


def look(database: Engine, rates: Rates = RATES) -> Economics:
    with snapshot(database) as connection:
        return costs.economics(connection, rates, 0, END_US)


def test_runs_are_read_from_the_blocks_on_record(served: Engine) -> None:
    with snapshot(served) as connection:
        runs = step_runs(connection)
        some = step_runs(connection, events_max=30)
    assert [(run.concurrency, run.steps, run.step_ns // MS) for run in runs] == [
        (concurrency, 5, ms) for concurrency, ms in LEVELS.items() for _ in range(3)
    ]
    assert [run.tokens for run in runs] == [10] * 3 + [20] * 3 + [40] * 3
    # The latest steps only, the one that the limit may have cut left out.
    assert sum(run.steps * run.concurrency for run in some) == 28
    assert len(some) < len(runs)


def test_costs_follow_from_the_fit_and_what_requests_came_to(served: Engine) -> None:
    found = look(served)
    assert found.fit is not None
    assert found.fit.alpha.value == pytest.approx(0.2)
    assert found.no_fit is None
    assert found.usual is not None
    assert (found.usual.requests, found.usual.tokens, found.usual.units) == (4, 500, 2)
    assert found.usual.joules == {EnergyClass.MEASURED: 36.0}
    by_level = {point.concurrency: point for point in found.points}
    # 3.60 an hour is a thousandth a second: a step of 14 ms costs 0.000014, a quarter of it each.
    each = by_level[4]
    assert each.per_step == pytest.approx(0.000014)
    assert each.per_request == pytest.approx(0.0000035 * found.usual.blocks)
    assert each.per_unit == pytest.approx(each.per_request / 2)
    assert each.per_joule == {EnergyClass.MEASURED: pytest.approx(each.per_request / 36)}
    assert (each.measured_ms, each.is_extrapolated) == (14.0, False)
    assert by_level[64].measured_ms is None
    assert by_level[64].is_extrapolated


def test_margins_are_charges_less_machine_and_energy(served: Engine) -> None:
    found = {each.tenant_id: each for each in look(served).margins}
    blocks = 15 + 30 + 60
    busy_s = 3 * (10 + 12 + 14) * 14 / 1000  # four steps and a slow one in each minute
    one, two = found["ten_1"], found["ten_2"]
    assert one.charged_nano == 3 * 500_000_000
    assert one.joules == {EnergyClass.MEASURED: 108.0}
    assert one.energy_cost == pytest.approx(108 / 3.6e6 * 0.36)
    assert one.machine_cost == pytest.approx(3 * (two.machine_cost or 0))  # three requests, alike
    usual = look(served).usual
    assert usual is not None
    assert two.machine_hours == pytest.approx(usual.blocks * busy_s / blocks / 3600)
    assert two.margin == pytest.approx(0.5 - (two.machine_cost or 0) - (two.energy_cost or 0))


def test_what_was_not_measured_or_stated_is_unknown(served: Engine, database: Engine) -> None:
    unpriced = look(served, Rates("USD", Decimal(1)))
    assert {(each.energy_cost, each.margin) for each in unpriced.margins} == {(None, None)}
    foreign = look(served, Rates("EUR", Decimal(1), Decimal(1)))
    assert {each.margin for each in foreign.margins} == {None}


def test_without_any_record_nothing_is_said(database: Engine) -> None:
    found = look(database)
    assert (found.fit, found.usual, found.points, found.margins) == (None, None, (), ())
    assert "on record are 0 at 0" in str(found.no_fit)


def test_the_command_says_the_same(served: Engine, tmp_path: Path) -> None:
    context = CliContext(tmp_path, served.url.render_as_string(hide_password=False))

    def run(*arguments: str, status: int = 0) -> str:
        done = CliRunner().invoke(economics, arguments, obj=context)
        assert done.exit_code == status, done.output
        return done.output

    rates = ("--per-hour", "3.6", "--per-kwh", "0.36", "--days", "3650")
    shown = run("costs", *rates)
    assert "alpha 0.200 (0.200 to 0.200)" in shown
    assert re.search(r", 0\.0000\d+ a joule \(measured\)$", shown, re.MULTILINE)
    whole = json.loads(run("costs", *rates, "--json"))
    assert whole["fit"]["alpha"]["value"] == pytest.approx(0.2)
    assert "margin 0." in run("margins", *rates)
    assert "not an amount" in run("costs", "--per-hour", "cheap", status=2)
