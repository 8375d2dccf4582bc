"""The largest few of many values."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.selection import largest


@given(
    seed=st.integers(0, 2**32),
    size=st.one_of(st.integers(1, 40), st.integers(200, 2_000)),
    count=st.integers(1, 300),
    levels=st.sampled_from([1, 3, 1_000]),  # few of them: ties
    forbidden=st.sampled_from([0.0, 0.9]),
)
def test_the_largest_are_the_first_of_the_stable_order(
    seed: int, size: int, count: int, levels: int, forbidden: float
) -> None:
    random = np.random.default_rng(seed)
    values = random.integers(-levels, levels, size).astype(np.float32)
    values[random.random(size) < forbidden] = -np.inf
    stable = np.argsort(-values, kind="stable")[:count]
    assert largest(values, count).tolist() == sorted(stable.tolist())
