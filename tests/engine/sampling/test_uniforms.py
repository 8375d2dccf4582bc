"""The uniforms are numpy's Philox, addressed by counter instead of drawn in sequence."""

import numpy as np
import pytest

from engine.sampling.uniforms import philox, uniform


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1, 0x1234_5678_9ABC_DEF0])
@pytest.mark.parametrize("position", [1, 2, 77, 2**40])
def test_a_block_is_what_numpy_draws_at_that_counter(seed: int, position: int) -> None:
    key, before = np.array([seed, 5], np.uint64), np.array([position - 1, 0, 0, 0], np.uint64)
    theirs = np.random.Philox(key=key, counter=before).random_raw(4)  # increments, then draws
    assert philox((seed, 5), (position, 0, 0, 0)) == tuple(int(word) for word in theirs)


def test_seed_choice_and_position_each_change_the_uniform() -> None:
    keys = [(seed, choice, at) for seed in range(5) for choice in range(4) for at in range(50)]
    assert len({uniform(*key) for key in keys}) == len(keys)


def test_a_negative_seed_is_taken_modulo_two_to_the_64() -> None:
    assert uniform(-1, 0, 3) == uniform(2**64 - 1, 0, 3)


def test_uniforms_fill_the_unit_interval_evenly() -> None:
    drawn = np.array([uniform(7, 0, position) for position in range(20_000)])
    assert 0.0 <= drawn.min() < drawn.max() < 1.0
    counts, _ = np.histogram(drawn, bins=20, range=(0.0, 1.0))
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 43.8  # 99.9 % point, 19 degrees of freedom; the draws are fixed
