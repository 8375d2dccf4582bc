"""The expert cache against a list of everything that ever happened."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cache.experts import HALF_LIFE, ExpertCache

LAYERS, EXPERTS = 3, 6
steps = st.lists(
    st.lists(
        st.dictionaries(st.integers(0, EXPERTS - 1), st.integers(1, 40), min_size=1),
        min_size=LAYERS,
        max_size=LAYERS,
    ),
    max_size=30,
)


def opened(size: int, heat: list[list[int]] | None = None) -> tuple[ExpertCache[str], list[str]]:
    """Return a cache of names, and the list of what it prepared."""
    prepared: list[str] = []

    def prepare(layer: int, expert: int) -> str:
        prepared.append(f"{layer}.{expert}")
        return prepared[-1]

    counts = None if heat is None else np.array(heat, dtype=np.int64)
    return ExpertCache(prepare, LAYERS, EXPERTS, size=size, heat=counts), prepared


def take(cache: ExpertCache[str], layer: int, rows: dict[int, int]) -> list[str]:
    experts = sorted(rows)
    return list(
        cache.take(
            layer,
            np.array(experts, dtype=np.int64),
            np.array([rows[expert] for expert in experts], dtype=np.int64),
        )
    )


@settings(max_examples=60)
@given(size=st.integers(0, 20), run=steps)
def test_it_keeps_what_was_used_most_and_last_and_counts_what_it_does(size, run):
    cache, prepared = opened(size)
    used: dict[tuple[int, int], float] = {}
    kept = len(prepared)
    assert cache.size == kept == (size if 0 < size < 18 else 18)
    uses = chosen = 0
    for step, layers in enumerate(run):
        for layer, rows in enumerate(layers):
            read = len(prepared)
            names = take(cache, layer, rows)
            assert names == [f"{layer}.{expert}" for expert in sorted(rows)]
            uses += len(rows)
            chosen += sum(rows.values())
            for expert, count in rows.items():
                weight = count * 2 ** (step / HALF_LIFE)
                used[layer, expert] = used.get((layer, expert), 0.0) + weight
            assert len(set(prepared[read:])) == len(prepared) - read  # each once
    counters = cache.counters
    assert (counters.lookups, counters.lookups - counters.hits) == (uses, len(prepared) - kept)
    assert counters.kept == cache.size
    assert cache.chosen.sum() == chosen
    if cache.size == LAYERS * EXPERTS:
        assert counters.evictions == 0
        assert counters.hit_ratio == (1.0 if uses else None)


def test_what_a_rejected_draft_used_is_still_there_for_the_next_step():
    cache, prepared = opened(4)
    for layer in range(LAYERS):
        take(cache, layer, {5: 1})
    # a draft of many rows, most of them rejected, and the step that follows it
    take(cache, 0, {1: 6, 2: 1, 5: 2})
    read = len(prepared)
    assert take(cache, 0, {1: 1, 5: 1}) == ["0.1", "0.5"]
    assert len(prepared) == read


def test_what_is_used_once_does_not_push_out_what_is_used_always():
    cache, prepared = opened(2)
    for _ in range(10):
        take(cache, 0, {1: 1, 2: 1})
    read = len(prepared)
    for _ in range(3):
        take(cache, 0, {4: 1})
    assert len(prepared) == read + 3  # read and let go each time
    take(cache, 0, {1: 1, 2: 1})
    assert len(prepared) == read + 3


def test_habits_change():
    cache, prepared = opened(1)
    for _ in range(200):
        take(cache, 0, {1: 1})
    for _ in range(200):
        take(cache, 0, {3: 1})
    read = len(prepared)
    take(cache, 0, {3: 1})
    assert len(prepared) == read


def test_a_profile_says_what_is_prepared_first_and_weighs_until_use_says_otherwise():
    heat = [[9, 1, 0, 0, 0, 0], [0, 0, 0, 0, 5, 5], [1, 1, 1, 1, 1, 1]]
    cache, prepared = opened(3, heat)
    assert prepared == ["0.0", "1.4", "1.5"]
    take(cache, 2, {0: 1})
    take(cache, 0, {0: 1})
    assert cache.counters.hits == 1
    assert cache.counters.evictions == 0


def test_forgetting_counts_from_the_profile_again():
    cache, _ = opened(2)
    for _ in range(5):
        take(cache, 1, {3: 2})
    cache.forget()
    assert cache.counters.lookups == cache.chosen.sum() == 0
    assert cache.counters.hit_ratio is None


@pytest.mark.parametrize("size", [1, 2])
def test_a_layer_s_step_may_use_more_than_are_kept(size):
    cache, _ = opened(size)
    for _ in range(3):
        assert take(cache, 2, dict.fromkeys(range(EXPERTS), 1)) == [f"2.{e}" for e in range(6)]
        assert cache.counters.kept == size


def test_only_what_is_not_at_hand_is_expected_before_any_of_it_is_prepared():
    events: list[tuple[str, int, int]] = []

    def heard(what: str):
        return lambda layer, expert: events.append((what, layer, expert))

    cache = ExpertCache(
        lambda layer, expert: heard("prepared")(layer, expert) or f"{layer}.{expert}",
        *(LAYERS, EXPERTS),
        size=LAYERS,  # the first expert of each
        expect=heard("expected"),
    )
    events.clear()
    take(cache, 1, {0: 1, 2: 1, 4: 1})
    kinds = ["expected", "expected", "prepared", "prepared"]
    assert events == [(kind, 1, expert) for kind, expert in zip(kinds, (2, 4, 2, 4), strict=True)]
