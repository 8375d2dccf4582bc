"""Shares of a step's energy: exact sums, and fair for an affine cost."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from engine_sequences import sequence

from engine.cache.pages import PagePool
from engine.loop.rows import Part
from engine.records import Work
from engine.scheduler.plan import Turn
from metering.energy.attribution import (
    OVERHEAD,
    AffineShapley,
    Claim,
    StepCosts,
    TimeWeighted,
    TokenWeighted,
    apportion,
    split,
)

COSTS = StepCosts(fixed=60, prefill_token=10, verified_node=5, kv_read=1)
AFFINE = AffineShapley(COSTS)
DEFAULT = AffineShapley()


def claim(name: str, work: Work, *, charged: bool = True, rode_with: str | None = None) -> Claim:
    return Claim(name, work, charged, 0, rode_with)


def shapley(works: dict[str, Work], costs: StepCosts) -> dict[str, Fraction]:
    """The Shapley value by its definition: the mean marginal cost over all orders."""

    def cost(players: tuple[str, ...]) -> int:
        return sum(costs.own(works[name]) for name in players) + (costs.fixed if players else 0)

    values = dict.fromkeys(works, Fraction(0))
    for order in itertools.permutations(works):
        for place, name in enumerate(order):
            values[name] += cost(order[: place + 1]) - cost(order[:place])
    return {name: value / math.factorial(len(works)) for name, value in values.items()}


def test_the_closed_form_is_the_shapley_value() -> None:
    works = {
        "a": Work(prefill_tokens=3),
        "b": Work(verified_nodes=8, kv_read_tokens=100),
        "c": Work(verified_nodes=1),
    }
    expected = shapley(works, COSTS)
    total = sum(expected.values())
    assert total.denominator == 1
    shares = split(int(total) * 7, [claim(name, work) for name, work in works.items()], AFFINE)
    shares.pop(OVERHEAD, None)
    assert {name: Fraction(share, 7) for name, share in shares.items()} == expected


def test_shares_sum_to_the_energy_exactly() -> None:
    claims = [claim(name, Work(verified_nodes=1)) for name in "abc"]
    shares = split(100, claims, DEFAULT)
    assert sum(shares.values()) == 100
    assert {name: shares[name] for name in "abc"} == {"a": 34, "b": 33, "c": 33}


def test_the_order_of_requests_does_not_matter() -> None:
    claims = [
        claim("b", Work(verified_nodes=3)),
        claim("a", Work(verified_nodes=3)),
        claim("c", Work(prefill_tokens=1)),
    ]
    results = [split(1001, order, AFFINE) for order in itertools.permutations(claims)]
    assert all(result == results[0] for result in results)


def test_a_request_that_did_nothing_pays_nothing() -> None:
    shares = split(90, [claim("busy", Work(verified_nodes=1)), claim("idle", Work())], AFFINE)
    assert shares.get("idle", 0) == 0
    assert shares["busy"] == 90


def test_recomputation_is_overhead() -> None:
    work = Work(verified_nodes=2, recomputed_tokens=7)
    shares = split(140, [claim("a", work)], AFFINE)
    assert shares == {"a": 70, OVERHEAD: 70}


def test_a_step_of_nothing_but_recomputation_is_overhead_whole_with_the_keys_that_it_read() -> None:
    pool = PagePool(8, 4)
    preempted = sequence(pool, 1, prompt_length=6)
    preempted.table.reserve(6)
    preempted.advance(6)
    preempted.table.release()
    preempted.computed = 0
    work = Part(Turn(preempted, 4), None).work
    assert work.recomputed_tokens == 4
    for policy in (AFFINE, TokenWeighted(), TimeWeighted()):
        assert split(50, [claim("a", work)], policy) == {OVERHEAD: 50}


def test_who_works_bears_its_share_of_the_fixed_cost_be_its_own_cost_nothing() -> None:
    """Given a fit that found prompt rows and key reads too cheap to tell from nothing."""
    policy = AffineShapley(StepCosts(fixed=60, prefill_token=0, verified_node=5, kv_read=0))
    prompt = claim("prompt", Work(prefill_tokens=8, kv_read_tokens=36))
    assert split(60, [prompt], policy) == {"prompt": 60}
    assert split(70, [prompt, claim("node", Work(verified_nodes=2))], policy) == {
        "prompt": 30,
        "node": 40,
    }


def test_work_that_is_not_charged_is_overhead() -> None:
    claims = [
        claim("gone", Work(verified_nodes=4), charged=False),
        claim("here", Work(verified_nodes=4)),
    ]
    assert split(10, claims, AFFINE) == {"here": 5, OVERHEAD: 5}


def test_work_that_was_done_for_several_is_one_players_and_theirs_in_equal_parts() -> None:
    riders = [claim(name, Work(), rode_with="lead") for name in ("one", "two")]
    claims = [claim("lead", Work(verified_nodes=4)), *riders, claim("b", Work(verified_nodes=4))]
    assert split(600, claims, AFFINE) == {"lead": 100, "one": 100, "two": 100, "b": 300}


def test_who_leads_and_leaves_takes_no_work_out_of_what_the_others_pay() -> None:
    """Given leaders and followers whose blocks of the step were withheld."""
    for charged in itertools.product([False, True], repeat=3):
        names = dict(zip(("lead", "one", "two"), charged, strict=True))
        claims = [
            claim("lead", Work(verified_nodes=4), charged=names["lead"]),
            claim("one", Work(), charged=names["one"], rode_with="lead"),
            claim("two", Work(), charged=names["two"], rode_with="lead"),
        ]
        shares = split(600, claims, AFFINE)
        payers = [name for name, pays in names.items() if pays]
        assert {name: share for name, share in shares.items() if share} == (
            {name: 600 // len(payers) for name in payers} if payers else {OVERHEAD: 600}
        )


def test_by_tokens_a_row_is_a_row() -> None:
    claims = [
        claim("prompt", Work(prefill_tokens=6, kv_read_tokens=900)),
        claim("tree", Work(verified_nodes=2, recomputed_tokens=2)),
    ]
    assert split(100, claims, TokenWeighted()) == {"prompt": 60, "tree": 20, OVERHEAD: 20}


def test_by_time_all_are_alike_but_for_what_they_did_over() -> None:
    claims = [
        claim("prompt", Work(prefill_tokens=40)),
        claim("tree", Work(verified_nodes=1)),
        claim("again", Work(verified_nodes=1, recomputed_tokens=3)),
        claim("absent", Work()),
    ]
    assert split(120, claims, TimeWeighted()) == {
        "prompt": 40,
        "tree": 40,
        "again": 10,
        OVERHEAD: 30,
    }


def test_a_step_without_work_is_overhead() -> None:
    assert split(10, [], AFFINE) == {OVERHEAD: 10}


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [
        (10, {"a": 1, "b": 1, "c": 1}, {"a": 4, "b": 3, "c": 3}),
        (0, {"a": 1}, {"a": 0}),
        (7, {"a": 0, "b": 2}, {"b": 7}),
        (5, {"a": 0}, {OVERHEAD: 5}),
        (3, {"a": 10**30, "b": 1}, {"a": 3, "b": 0}),
    ],
)
def test_apportion_rounds_by_largest_remainder(
    total: int, weights: dict[str, int], shares: dict[str, int]
) -> None:
    assert apportion(total, weights) == shares


def test_the_example_of_the_readme() -> None:
    claims = [claim("A", Work(prefill_tokens=12)), claim("B", Work(verified_nodes=2))]
    shares = split(1_000_000, claims, DEFAULT)
    assert (shares["A"], shares["B"]) == (647_059, 352_941)
