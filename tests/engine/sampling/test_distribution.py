"""The processed distribution against its definition, and the draw against the distribution."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.requests import SamplingParams
from engine.sampling.distribution import NothingToDraw, distribution, draw
from engine.sampling.uniforms import uniform


def kept_by_definition(logits: np.ndarray, params: SamplingParams) -> dict[int, float]:
    """The same filters, spelled out over Python lists."""
    scaled = (logits - logits.max()) * np.float32(1 / params.temperature)
    weight = dict(enumerate(np.exp(scaled).tolist()))
    order = sorted((t for t in weight if weight[t] > 0), key=lambda t: (-weight[t], t))
    if params.top_k is not None:
        order = order[: params.top_k]
    if params.top_p < 1.0:
        cumulative = np.cumsum([weight[t] for t in order])
        target = params.top_p * cumulative[-1]
        # Where a sum lands on the target up to rounding, both answers are right.
        assume(np.abs(cumulative - target).min() > 1e-9 * target)
        order = order[: int((cumulative < target).sum()) + 1]
    return {t: weight[t] for t in order if weight[t] >= params.min_p}


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 700),
    step=st.sampled_from([0.0, 0.5, 2.0]),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.01, 0.7, 1.0, 5.0]),
        top_k=st.sampled_from([None, 1, 3, 50, 10_000]),
        top_p=st.sampled_from([0.05, 0.37, 0.9, 1.0]),
        min_p=st.sampled_from([0.0, 0.1, 1.0]),
    ),
)
@settings(max_examples=200)
def test_filters_keep_what_their_definition_keeps(
    seed: int, size: int, step: float, params: SamplingParams
) -> None:
    # A coarse step makes ties common.
    logits = np.random.default_rng(seed).normal(size=size).astype(np.float32) * 3
    logits = np.round(logits / step).astype(np.float32) * np.float32(step) if step else logits
    ids, weights = distribution(logits, params)
    expected = kept_by_definition(logits, params)
    assert sorted(expected) == ids.tolist()
    assert [expected[token] for token in ids.tolist()] == weights.tolist()


@given(
    seed=st.integers(0, 2**32),
    size=st.integers(1, 700),
    temperature=st.sampled_from([0.01, 0.7, 5.0]),
    forbidden=st.sampled_from([0.0, 0.5, 0.99]),
    drawn=st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2.0**-53])),
)
def test_without_filters_the_draw_is_the_one_of_the_distribution(
    seed: int, size: int, temperature: float, forbidden: float, drawn: float
) -> None:
    """Given tokens of no weight among them, at the end too."""
    random = np.random.default_rng(seed)
    logits = random.normal(size=size).astype(np.float32) * 3
    logits[random.random(size) < forbidden] = -np.inf
    assume(np.isfinite(logits).any())
    params = SamplingParams(temperature=temperature)
    ids, weights = distribution(logits, params)
    cumulative = np.cumsum(weights)
    place = int((cumulative <= drawn * cumulative[-1]).sum())
    assert draw(logits, params, drawn) == ids[min(place, len(ids) - 1)]


def test_top_p_looks_as_far_as_it_must_when_the_distribution_is_flat() -> None:
    ids, _ = distribution(
        np.zeros(10_000, np.float32), SamplingParams(temperature=1.0, top_p=0.755)
    )
    assert ids.tolist() == list(range(7550))


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
