"""Tree attention in Triton's interpreter, against its twin and against no layout at all."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import attention_case

from engine.kernels.triton import attention_reference
from engine.kernels.triton.attention import attention_options, rows_per_piece, tree_attention

SHAPES = {  # heads, kv heads, dim
    "grouped": (6, 2, 16),
    "one key-value head, an odd dim": (4, 1, 20),
    "a key-value head for each": (2, 2, 8),
    "a group wider than a tile": (40, 1, 8),
}


def attended(function, case):
    mixed = torch.full_like(case.queries, torch.nan)
    function(case.plan(), case.pool, case.queries, mixed, heads=case.heads)
    return mixed


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from([torch.float32, torch.bfloat16]))
def test_a_row_attends_to_its_committed_tokens_and_its_ancestors(shape, seed, dtype):
    heads, kv_heads, dim = shape
    case = attention_case(seed, heads=heads, kv_heads=kv_heads, dim=dim, dtype=dtype)
    expected = case.expected().float()
    for function in (tree_attention, attention_reference.tree_attention):
        torch.testing.assert_close(attended(function, case), expected, rtol=1e-4, atol=1e-5)


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32 - 1), which=st.floats(0, 1, exclude_max=True))
def test_a_row_has_the_bits_of_a_row_alone(seed, which):
    case = attention_case(seed, heads=6, kv_heads=2, dim=16)
    row = int(which * len(case.queries))
    alone = attended(tree_attention, case.alone(row))
    assert torch.equal(attended(tree_attention, case)[row], alone[0])


@pytest.mark.parametrize("dim", [8, 64, 96, 128, 256, 512])
@pytest.mark.parametrize("group", [1, 3, 8, 64, 71])
def test_tiles_are_powers_of_two_that_hold_a_row_and_divide_the_layout(group, dim):
    options = attention_options(2 * group, 2, dim)
    for name in ("ROWS", "KEYS", "WIDTH"):
        assert options[name] & (options[name] - 1) == 0
    assert options["WIDTH"] >= dim
    assert 64 % options["KEYS"] == 0
    assert 1 <= rows_per_piece(group) <= options["ROWS"] // group
