"""The gate: a hold always covers what was committed, within max_cost and credit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from billing_cases import energy, summary, tariff, unit
from billing_sweeps import expire_holds
from billing_world import FAR_US, add_request, add_tenant, balances, books_balance, hold_state
from sqlalchemy import Connection, Engine, update

from billing.errors import CostCeilingTooLow, HoldConflict, InsufficientCredit
from billing.gate import HoldGate
from billing.ledger import holds
from billing.money import format_nano
from billing.quotes import if_stopped, worst_case
from metering.database import transaction
from metering.events import EndedBy, RequestSummary
from metering.protocols import Cover
from metering.request_parameters import MAX_ENERGY
from metering.tables import tenants

# 100 nano a prompt token; 400 an output token, 500 in a fragment; up to 1,000 for joules a token.
TERMS = tariff(
    input={"per_million": "0.1"},
    output={"per_million": "0.4", "units": {"fragment": "1.25"}},
    energy={"per_million": {"estimated": "1"}, "cap_joules_per_token": "1"},
    review={"fee": "0.01"},
)
INPUT = 20 * (100 + 1_000)
TOKEN = 500 + 1_000  # the most that one output token costs
FEE = 10_000_000


@pytest.fixture
def connection(database: Engine) -> Iterator[Connection]:
    with transaction(database) as opened:
        yield opened
        books_balance(opened)


def admitted(
    connection: Connection,
    *,
    credit: int = 10**9,
    lookahead: int = 8,
    opt_in: bool = False,
    **fields: Any,
) -> HoldGate:
    add_tenant(connection, credit=format_nano(credit), opt_in=opt_in, pays=TERMS)
    gate = HoldGate(lookahead_tokens=lookahead)
    gate.admit(connection, add_request(connection, **fields), expires_at_us=FAR_US)
    return gate


def stopped(*units: Any, **fields: Any) -> RequestSummary:
    return summary(*units, ended_by=EndedBy.TENANT, **fields)


def held(connection: Connection) -> int:
    hold = holds.find(connection, "req_1")
    assert hold is not None
    return hold.amount_nano


def test_the_first_hold_is_input_and_the_worst_case_of_the_first_tokens(
    connection: Connection,
) -> None:
    admitted(connection)
    assert held(connection) == INPUT + 8 * TOKEN == worst_case(TERMS, 20, 8, review=False)


def test_the_first_hold_never_looks_beyond_max_tokens(connection: Connection) -> None:
    admitted(connection, max_tokens=3)
    assert held(connection) == INPUT + 3 * TOKEN


def test_a_tenant_that_opted_in_holds_the_review_fee_too(connection: Connection) -> None:
    admitted(connection, opt_in=True)
    assert held(connection) == INPUT + 8 * TOKEN + FEE


def test_a_max_cost_bounds_the_first_hold(connection: Connection) -> None:
    admitted(connection, max_cost_nano=INPUT + 2 * TOKEN)
    assert held(connection) == INPUT + 2 * TOKEN


def test_a_max_cost_that_covers_no_token_is_refused_before_anything_is_held(
    connection: Connection,
) -> None:
    with pytest.raises(CostCeilingTooLow) as refusal:
        admitted(connection, max_cost_nano=INPUT + TOKEN - 1)
    assert refusal.value.needed_nano == INPUT + TOKEN
    assert refusal.value.ceiling_nano == INPUT + TOKEN - 1
    assert "holds" not in balances(connection)


def test_no_max_cost_is_no_limit_and_zero_is_one(connection: Connection) -> None:
    gate = admitted(connection, max_cost_nano=None)
    with pytest.raises(CostCeilingTooLow):
        gate.admit(
            connection, add_request(connection, "req_2", max_cost_nano=0), expires_at_us=FAR_US
        )


def test_an_admission_that_credit_does_not_cover_is_refused(connection: Connection) -> None:
    with pytest.raises(InsufficientCredit) as refusal:
        admitted(connection, credit=INPUT + 8 * TOKEN - 1)
    assert refusal.value.needed_nano == INPUT + 8 * TOKEN
    assert refusal.value.available_nano == INPUT + 8 * TOKEN - 1
    assert hold_state(connection) is None


def test_what_the_hold_covers_changes_nothing(connection: Connection) -> None:
    gate = admitted(connection)
    before = balances(connection)
    assert gate.cover(connection, stopped(unit(7, "fragment"))) is Cover.COVERED
    assert balances(connection) == before


def test_a_hold_that_runs_short_is_raised_ahead(connection: Connection) -> None:
    gate = admitted(connection)
    assert gate.cover(connection, stopped(unit(9, "fragment"))) is Cover.COVERED
    assert held(connection) == INPUT + (9 + 8) * TOKEN


def test_near_the_end_the_hold_is_raised_only_to_max_tokens(connection: Connection) -> None:
    gate = admitted(connection, max_tokens=10)
    assert gate.cover(connection, stopped(unit(9, "fragment"))) is Cover.COVERED
    assert held(connection) == INPUT + 10 * TOKEN


def test_units_that_closed_no_longer_need_the_fragments_premium(connection: Connection) -> None:
    gate = admitted(connection)
    so_far = stopped(unit(8), unit(1, "fragment"))
    assert gate.cover(connection, so_far) is Cover.COVERED
    assert held(connection) == INPUT + 8 * (400 + 1_000) + 9 * TOKEN


def test_max_cost_is_the_tenants_limit_and_leaves_the_hold_alone(connection: Connection) -> None:
    gate = admitted(connection, max_cost_nano=INPUT + 10 * TOKEN)
    assert gate.cover(connection, stopped(unit(11, "fragment"))) is Cover.MAX_COST
    assert held(connection) == INPUT + 8 * TOKEN
    assert gate.cover(connection, stopped(unit(10, "fragment"))) is Cover.COVERED
    assert held(connection) == INPUT + 10 * TOKEN


def test_credit_is_the_operators_limit_and_leaves_the_hold_alone(connection: Connection) -> None:
    gate = admitted(connection, credit=INPUT + 10 * TOKEN)
    before = balances(connection)
    assert gate.cover(connection, stopped(unit(11, "fragment"))) is Cover.CREDIT
    assert balances(connection) == before
    assert gate.cover(connection, stopped(unit(10, "fragment"))) is Cover.COVERED
    assert balances(connection) == {"holds": INPUT + 10 * TOKEN}


def test_output_is_cut_at_the_longest_prefix_that_credit_covers(connection: Connection) -> None:
    gate = admitted(connection, credit=INPUT + 10 * TOKEN + TOKEN // 2)
    covered = [
        bool(gate.cover(connection, stopped(unit(tokens, "fragment")))) for tokens in range(20)
    ]
    assert covered == [True] * 11 + [False] * 9


def test_a_late_opt_in_is_held_for_from_the_next_block_on(connection: Connection) -> None:
    gate = admitted(connection)
    connection.execute(update(tenants).values(review_opt_in=True))
    assert gate.cover(connection, stopped(unit(1))) is Cover.COVERED
    assert held(connection) >= INPUT + FEE


def test_an_expired_hold_covers_nothing_more(connection: Connection) -> None:
    gate = admitted(connection)
    expire_holds(connection, FAR_US)
    assert gate.cover(connection, stopped(unit(1))) is Cover.CREDIT
    assert balances(connection) == {"tenant_credit": 10**9}


def test_a_test_mode_request_holds_nothing_and_is_always_covered(connection: Connection) -> None:
    gate = admitted(connection, credit=0, test_mode=True, max_cost_nano=0)
    assert held(connection) == 0
    assert gate.cover(connection, stopped(unit(90))) is Cover.COVERED
    assert balances(connection) == {}


def test_a_request_without_a_hold_is_an_error_and_not_free(connection: Connection) -> None:
    gate = admitted(connection)
    add_request(connection, "req_2")
    with pytest.raises(HoldConflict):
        gate.cover(connection, stopped(unit(1), request_id="req_2"))


def test_energy_that_settles_late_is_covered_already(connection: Connection) -> None:
    gate = admitted(connection)
    so_far = stopped(unit(9, "fragment"))
    assert gate.cover(connection, so_far) is Cover.COVERED
    assert held(connection) >= INPUT + 9 * TOKEN


def test_how_far_a_first_hold_reaches_is_known_from_its_placement(connection: Connection) -> None:
    gate = admitted(connection)
    assert gate.reach(connection, ["req_1", "req_2"]) == {"req_1": 8}
    dearest = stopped(unit(8, "fragment"))
    assert if_stopped(TERMS, dearest, review=False) <= held(connection), "and it covers as much"


def test_how_far_a_hold_at_its_max_cost_reaches_is_known_once_it_was_asked_for(
    connection: Connection,
) -> None:
    gate = admitted(connection, max_cost_nano=INPUT + 8 * TOKEN - 1)
    assert gate.reach(connection, ["req_1"]) == {}
    assert gate.cover(connection, stopped(unit(1, "fragment"))) is Cover.COVERED
    assert gate.reach(connection, ["req_1"]) == {"req_1": 7}


def test_a_max_cost_that_the_first_hold_does_not_meet_changes_nothing_of_its_reach(
    connection: Connection,
) -> None:
    gate = admitted(connection, max_cost_nano=INPUT + 8 * TOKEN)
    assert gate.reach(connection, ["req_1"]) == {"req_1": 8}


def test_a_hold_that_was_raised_reaches_further(connection: Connection) -> None:
    gate = admitted(connection)
    assert gate.cover(connection, stopped(unit(9, "fragment"))) is Cover.COVERED
    assert gate.reach(connection, ["req_1"]) == {"req_1": 17}


def test_a_reach_that_was_rolled_back_with_its_hold_is_not_relied_on(database: Engine) -> None:
    with transaction(database) as connection:
        gate = admitted(connection)
        assert gate.cover(connection, stopped(unit(1, "fragment"))) is Cover.COVERED
    with suppress(ZeroDivisionError), transaction(database) as connection:
        assert gate.cover(connection, stopped(unit(9, "fragment"))) is Cover.COVERED
        raise ZeroDivisionError
    with transaction(database) as connection:
        assert held(connection) == INPUT + 8 * TOKEN
        assert gate.reach(connection, ["req_1"]) == {}


def test_an_expired_hold_and_a_late_opt_in_reach_nowhere(connection: Connection) -> None:
    gate = admitted(connection)
    assert gate.cover(connection, stopped(unit(1, "fragment"))) is Cover.COVERED
    connection.execute(update(tenants).values(review_opt_in=True))
    assert gate.reach(connection, ["req_1"]) == {}
    connection.execute(update(tenants).values(review_opt_in=False))
    assert gate.reach(connection, ["req_1"]) == {"req_1": 8}
    expire_holds(connection, FAR_US)
    assert gate.reach(connection, ["req_1"]) == {}


def test_a_test_mode_request_reaches_its_end(connection: Connection) -> None:
    gate = admitted(connection, credit=0, test_mode=True, max_tokens=90)
    assert gate.reach(connection, ["req_1"]) == {"req_1": 90}
    assert gate.cover(connection, stopped(unit(1))) is Cover.COVERED
    assert gate.reach(connection, ["req_1"]) == {"req_1": 90}


@pytest.mark.parametrize("test_mode", [False, True])
def test_a_request_ends_once_it_has_taken_its_max_joules(
    connection: Connection, test_mode: bool
) -> None:
    gate = admitted(connection, test_mode=test_mode, parameters={MAX_ENERGY: 500_000})
    assert gate.reach(connection, ["req_1"]) == {}, "from the first block on"
    unknown = stopped(unit(1), energy=energy(uj=None))
    assert gate.cover(connection, unknown) is Cover.COVERED
    below = stopped(unit(2), energy=energy(uj=499_999))
    assert gate.cover(connection, below) is Cover.COVERED
    assert gate.reach(connection, ["req_1"]) == {}, "every block is asked about"
    before = balances(connection)
    assert gate.cover(connection, stopped(unit(3), energy=energy(uj=500_000))) is Cover.MAX_COST
    assert balances(connection) == before


def test_a_reach_that_is_forgotten_is_worked_out_again(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.gate.REACHES_MAX", 1)
    gate = admitted(connection)
    second = add_request(connection, "req_2")
    gate.admit(connection, second, expires_at_us=FAR_US)
    for request_id in ("req_1", "req_2"):
        so_far = stopped(unit(1, "fragment"), request_id=request_id)
        assert gate.cover(connection, so_far) is Cover.COVERED
    assert gate.reach(connection, ["req_1", "req_2"]) == {"req_2": 8}


def test_a_hold_at_its_max_cost_is_not_to_be_raised_again_for_every_block(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = admitted(connection, max_cost_nano=INPUT + 10 * TOKEN)
    tried = []
    extend = holds.extend

    def counted(*args: Any, **kwargs: Any) -> holds.Hold:
        tried.append(args)
        return extend(*args, **kwargs)

    monkeypatch.setattr(holds, "extend", counted)
    for tokens in range(1, 11):
        assert gate.cover(connection, stopped(unit(tokens, "fragment"))) is Cover.COVERED
    assert held(connection) == INPUT + 10 * TOKEN
    assert len(tried) == 1
    assert not gate.cover(connection, stopped(unit(11, "fragment")))
