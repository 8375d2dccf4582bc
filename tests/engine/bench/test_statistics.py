"""Figures from runs: what is pooled, what is a median, and what stays null."""

from __future__ import annotations

import pytest
from bench_runs import answer, run
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.statistics import agreement, decode_rate, figures, of_category, percentile, ratio
from engine.records import DraftCounters


def test_a_rate_pools_tokens_over_time_not_rates() -> None:
    slow, fast = run(tokens=10, ms=1000), run(tokens=30, ms=1000)
    assert decode_rate([slow, fast]) == 20.0
    assert decode_rate([run(tokens=0, ms=0)]) is None
    assert decode_rate([]) is None


def test_a_ratio_is_taken_round_by_round() -> None:
    # The machine halves its pace in the second round; pooling over rounds would weigh it double.
    ours = [[run(tokens=40, ms=100)], [run(tokens=40, ms=200)], [run(tokens=40, ms=100)]]
    theirs = [[run(tokens=20, ms=100)], [run(tokens=20, ms=200)], [run(tokens=10, ms=100)]]
    assert ratio(ours, theirs) == 2.0
    assert ratio(ours, [[run(tokens=0)]] * 3) is None


def test_figures_are_medians_over_rounds_and_rates_of_drafting_over_all_blocks() -> None:
    counters = DraftCounters(
        steps=4,
        emitted_tokens=10,
        drafted_nodes=9,
        drafted_depth=8,
        verified_nodes=12,
        accepted_tokens=6,
        cached_tokens=3,
    )
    rounds = [
        [run(answer("a", 1, 2, counters=counters), tokens=tokens, ms=100, memory=tokens)]
        for tokens in (10, 40, 20)
    ]
    found = figures("dflash", 8, None, rounds, alone=True)
    assert (found.prompts, found.emitted_tokens) == (1, 2)
    assert found.decode_tokens_per_s == 200.0
    assert (found.decode_tokens_per_s_min, found.decode_tokens_per_s_max) == (100.0, 400.0)
    assert found.tokens_per_s == 10.0
    assert found.prefill_tokens_per_s == 300.0
    assert found.first_token_ms == 10.0
    assert (found.step_ms, found.step_ms_p95) == (25.0, 50.0)
    assert found.mean_accepted_length == 2.5
    assert found.mean_depth == 2.0
    assert found.node_efficiency == 0.5
    assert (found.hit_rate, found.rejection_rate) == (0.75, 0.25)
    assert found.cached_share == 0.5
    assert found.peak_memory_bytes == 40


def test_what_cannot_be_told_is_null_not_zero() -> None:
    mixed = figures("dflash", 8, "code", [[run(answer("a", 1))]], alone=False)
    assert mixed.decode_tokens_per_s is None
    assert mixed.step_ms is None
    assert mixed.first_token_ms == 10.0
    peer = figures("llama.cpp", 1, None, [[run(answer("a", 1))]], alone=True)
    assert peer.mean_accepted_length is None
    undrafted = DraftCounters(steps=2, emitted_tokens=2, verified_nodes=2)
    plain = figures("x", 1, None, [[run(answer("a", 1, counters=undrafted))]], alone=True)
    assert plain.mean_accepted_length == 1.0
    assert plain.mean_depth is plain.hit_rate is plain.rejection_rate is plain.cached_share is None


def test_answers_of_a_category_are_told_apart() -> None:
    rounds = [[run(answer("a", 1), answer("b", 2))]]
    assert [found.id for found in of_category(rounds, frozenset({"b"}))[0][0].answers] == ["b"]


@pytest.mark.parametrize(
    ("theirs", "share"),
    [((1, 2, 3, 4), 1.0), ((1, 2, 9, 4), 0.5), ((), 0.0), ((1, 2, 3, 4, 5), 1.0), ((9,), 0.0)],
)
def test_agreement_is_the_share_up_to_the_first_other_token(
    theirs: tuple[int, ...], share: float
) -> None:
    assert agreement([run(answer("a", 1, 2, 3, 4))], [run(answer("a", *theirs))]) == share


@given(st.lists(st.integers(), min_size=1), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_a_percentile_is_one_of_the_values_and_covers_its_share(
    values: list[int], share: float
) -> None:
    ascending = sorted(values)
    found = percentile(ascending, share)
    assert found in ascending
    assert sum(value <= found for value in ascending) >= share * len(ascending)
