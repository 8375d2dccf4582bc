"""The processed distribution against its definition, and the draw against the distribution."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.requests import SamplingParams
from engine.sampling.distribution import NothingToDraw, distribution, draw
from engine.sampling.uniforms import uniform


def plain(logits: np.ndarray, params: SamplingParams) -> tuple[np.ndarray, np.ndarray]:
    """The definition, bit for bit: everything in double precision, and all of it sorted."""
    scaled = (logits - logits.max()) * np.float32(1 / params.temperature)
    weights = np.exp(scaled).astype(np.float64)
    ids = np.flatnonzero(weights)
    order = ids[np.lexsort((ids, -weights[ids]))]
    if params.top_k is not None:
        order = order[: params.top_k]
    if params.top_p < 1.0:
        reached = np.cumsum(weights[order]) >= params.top_p * weights[np.sort(order)].sum()
        order = order[: int(np.argmax(reached)) + 1] if reached.any() else order
    ids = np.sort(order)
    ids = ids[weights[ids] >= params.min_p]
    return ids, weights[ids]


def plainly_drawn(ids: np.ndarray, weights: np.ndarray, uniform: float) -> int:
    cumulative = np.cumsum(weights)
    return int(ids[int((cumulative <= uniform * cumulative[-1]).sum())])


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.01, 0.2, 0.7, 1.0, 5.0]),
    top_k=st.sampled_from([None, None, 1, 3, 50, 10_000]),
    top_p=st.sampled_from([0.05, 0.37, 0.9, 1.0, 1.0]),
    min_p=st.sampled_from([0.0, 0.0, 0.1, 1.0]),
)


@given(
    seed=st.integers(0, 2**32),
    size=st.one_of(st.integers(1, 700), st.sampled_from([4_096, 49_152])),
    step=st.sampled_from([0.0, 0.5, 2.0]),
    forbidden=st.sampled_from([0.0, 0.0, 0.5, 0.99]),
    params=PARAMS,
)
@settings(max_examples=200)
def test_filters_and_draws_are_those_of_the_definition(
    seed: int, size: int, step: float, forbidden: float, params: SamplingParams
) -> None:
    random = np.random.default_rng(seed)
    # A coarse step makes ties common.
    logits = random.normal(size=size).astype(np.float32) * 3
    logits = np.round(logits / step).astype(np.float32) * np.float32(step) if step else logits
    logits[random.random(size) < forbidden] = -np.inf
    logits[random.integers(size)] = 2.0
    ids, weights = plain(logits, params)
    if params != SamplingParams(temperature=params.temperature):
        found = distribution(logits, params)
        assert found.ids.tolist() == ids.tolist()
        assert found.weights.tolist() == weights.tolist()
    cumulative = np.cumsum(weights)
    # Where a uniform falls on a boundary, rounding decides: the nearest ones, too.
    edges = random.choice(cumulative, 5) / cumulative[-1]
    near = [edges, np.nextafter(edges, 0.0), np.nextafter(edges, 2.0), random.random(5)]
    for drawn in [0.0, 1 - 2.0**-53, *np.concatenate(near).tolist()]:
        if drawn < 1.0:
            assert draw(logits, params, drawn) == plainly_drawn(ids, weights, drawn)


def test_top_p_looks_as_far_as_it_must_when_the_distribution_is_flat() -> None:
    ids, _ = distribution(
        np.zeros(10_000, np.float32), SamplingParams(temperature=1.0, top_p=0.755)
    )
    assert ids.tolist() == list(range(7550))


def test_min_p_is_not_rounded_to_the_precision_of_the_weights() -> None:
    logits = np.array([0.0, -1.5], np.float32)
    _, weights = distribution(logits, SamplingParams(temperature=1.0, min_p=1e-9))
    above = float(np.nextafter(weights[1], 1.0))
    assert np.float32(above) == weights[1]
    assert distribution(logits, SamplingParams(temperature=1.0, min_p=above)).ids.tolist() == [0]


def test_greedy_takes_the_lowest_of_equal_ids_and_needs_no_uniform() -> None:
    logits = np.array([0.0, 2.0, 2.0, 1.0], np.float32)
    assert {draw(logits, SamplingParams(), u) for u in (0.0, 0.5, 0.999)} == {1}


def test_draws_follow_the_distribution() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    params = SamplingParams(temperature=1.0)
    drawn = [draw(logits, params, uniform(11, 0, position)) for position in range(8000)]
    counts = np.bincount(drawn, minlength=4)
    expected = np.array([4000, 2000, 1000, 1000])
    assert ((counts - expected) ** 2 / expected).sum() < 16.3  # 99.9 %, 3 degrees of freedom


def test_the_extremes_of_the_uniform_select_the_first_and_last_possible_token() -> None:
    logits = np.array([-np.inf, 0.0, -np.inf, 0.0, -np.inf], np.float32)
    params = SamplingParams(temperature=1.0)
    assert draw(logits, params, 0.0) == 1
    assert draw(logits, params, 1.0 - 2**-53) == 3


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("logits", [[-np.inf, -np.inf], [0.0, np.nan], [0.0, np.inf]])
def test_logits_nothing_can_be_drawn_from_are_an_error(
    temperature: float, logits: list[float]
) -> None:
    with pytest.raises(NothingToDraw):
        draw(np.array(logits, np.float32), SamplingParams(temperature=temperature), 0.5)
