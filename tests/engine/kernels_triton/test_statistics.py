"""Node statistics and norms in Triton's interpreter, against their twins."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import random_children

from engine.kernels.triton import norm, norm_reference, statistics_reference
from engine.kernels.triton.statistics import CHUNK, node_statistics


def random_logits(seed, rows, vocabulary, scale):
    return scale * torch.randn(
        rows, vocabulary, generator=torch.Generator().manual_seed(seed)
    ).round(decimals=1)


@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 3),
    vocabulary=st.sampled_from([8, 269, CHUNK, CHUNK + 1, 3 * CHUNK - 5]),
    scale=st.sampled_from([0.0, 1.0, 30.0]),
    best=st.sampled_from([1, 2, 8]),
    children=st.integers(0, 17),
)
def test_one_pass_gives_what_the_twin_takes_several_for(
    seed, rows, vocabulary, scale, best, children
):
    """Given many ties: logits are rounded, and may all be zero, of either sign."""
    logits = random_logits(seed, rows, vocabulary, scale)
    tokens = random_children(rows, children, vocabulary, seed)
    found = node_statistics(logits, tokens, best)
    expected = statistics_reference.node_statistics(logits, tokens, best)
    for name, own, twin in zip(found._fields, found, expected, strict=True):
        assert own.dtype == twin.dtype, name
        torch.testing.assert_close(own, twin, rtol=2e-6, atol=2e-6, equal_nan=True)
    assert torch.equal(found.top_ids, expected.top_ids)


def test_the_lowest_of_equal_logits_comes_first_wherever_it_stands():
    logits = torch.zeros(1, 2 * CHUNK)
    logits[0, [5, CHUNK - 1, CHUNK, 2 * CHUNK - 1]] = 7.0
    logits[0, 3] = -0.0
    found = node_statistics(logits, torch.empty(1, 0, dtype=torch.int64), 8)
    assert found.top_ids.tolist() == [[5, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 0, 1, 2, 3]]
    assert found.child_logprobs.shape == (1, 0)


def test_a_certain_token_has_no_entropy_and_probability_one():
    logits = torch.full((1, 300), -1e4)
    logits[0, 9] = 50.0
    found = node_statistics(logits, torch.tensor([[9, -1, 8]]))
    assert found.entropy.item() == 0.0
    assert found.log_sum_exp.item() == 50.0
    assert found.child_logprobs[0, 0].item() == 0.0
    assert math.isnan(found.child_logprobs[0, 1].item())
    assert found.child_logprobs[0, 2].item() == -10_050.0


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, CHUNK + 3])
def test_a_logit_that_is_not_finite_leaves_the_entropy_not_finite(bad, place):
    logits = random_logits(1, 2, 2 * CHUNK, 3.0)
    logits[1, place] = bad
    entropy = node_statistics(logits, torch.empty(2, 0, dtype=torch.int64)).entropy
    assert torch.isfinite(entropy).tolist() == [True, False]


@settings(max_examples=6)
@given(rows=st.integers(0, 5), width=st.integers(1, 300))
def test_a_row_is_divided_by_its_root_mean_square(rows, width):
    generator = torch.Generator().manual_seed(width)
    values = 10 * torch.randn(rows, width, generator=generator)
    weight = torch.randn(width, generator=generator)
    expected = norm_reference.rms_norm(values, weight, 1e-5)
    torch.testing.assert_close(norm.rms_norm(values, weight, 1e-5), expected, rtol=1e-5, atol=1e-6)
    if rows > 1:
        assert torch.equal(
            norm.rms_norm(values[1:2], weight, 1e-5)[0], norm.rms_norm(values, weight, 1e-5)[1]
        )
