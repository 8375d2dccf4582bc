"""The GPU's projections in Triton's interpreter, against their twins."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.dfm.blocks import dequantise
from engine.errors import UnsupportedModel
from engine.kernels.backends import open_backend
from engine.kernels.cpu.linear import block_matrix
from engine.kernels.triton import linear, linear_reference
from engine.kernels.triton.linear_reference import grouped_weights

CPU = torch.device("cpu")


def random(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=10)
@given(
    rows=st.integers(1, 35),
    groups=st.integers(1, 4),
    outputs=st.integers(1, 80),
    bits=st.sampled_from([4, 8]),
    has_bias=st.booleans(),
)
def test_blocks_are_multiplied_as_what_they_stand_for(rows, groups, outputs, bits, has_bias):
    values = random(1, rows, 32 * groups)
    blocks = block_matrix(random(2, outputs, 32 * groups), bits=bits).blocks
    bias = random(3, outputs) if has_bias else None
    expected = torch.nn.functional.linear(
        values.double(), torch.from_numpy(dequantise(blocks)).double()
    )
    if has_bias:
        expected += bias.double()
    weights = grouped_weights(blocks, CPU)
    for twin in (linear, linear_reference):
        result = twin.grouped_linear(values, weights, bias)
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=6)
@given(rows=st.integers(1, 35), inputs=st.integers(1, 150), outputs=st.integers(1, 80))
def test_bfloat16_weights_are_multiplied_as_they_are(rows, inputs, outputs):
    values, weight = random(1, rows, inputs), random(2, outputs, inputs).bfloat16()
    bias = random(3, outputs)
    expected = values.double() @ weight.double().T + bias.double()
    for twin in (linear, linear_reference):
        result = twin.dense_linear(values, weight, bias)
        torch.testing.assert_close(result.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["bf16", "int8", "int4"])
def test_a_row_has_the_same_bits_at_every_row_count(name):
    prepared = open_backend(name).prepare(random(1, 70, 96), random(2, 70))
    rows = random(3, 40, 96)
    alone = prepared.compute(rows[17:18])
    for count in (18, 33, 40):
        assert torch.equal(prepared.compute(rows[:count])[17], alone[0])


@pytest.mark.parametrize(("name", "bits"), [("int8", 8), ("int4", 4)])
def test_a_backend_takes_a_files_own_blocks_and_rounds_others(name, bits):
    backend = open_backend(name)
    weight, rows = random(1, 40, 64), random(2, 3, 64)
    own = block_matrix(weight, bits=bits).blocks
    prepared = backend.prepare_blocks(own, None, CPU)
    rounded = backend.prepare(weight, None)
    assert torch.equal(prepared.compute(rows), rounded.compute(rows))
    assert backend.prepare_blocks(block_matrix(weight, bits=12 - bits).blocks, None, CPU) is None
    assert open_backend("bf16").prepare_blocks(own, None, CPU) is None


def test_inputs_that_make_no_whole_groups_are_refused():
    with pytest.raises(UnsupportedModel, match="32 inputs to a group, and not 40"):
        open_backend("int4").prepare(random(1, 8, 40), None)


def test_taking_blocks_apart_loses_nothing():
    for bits in (4, 8):
        blocks = block_matrix(random(1, 5, 64), bits=bits).blocks
        identity = torch.eye(64)
        result = linear_reference.grouped_linear(identity, grouped_weights(blocks, CPU), None)
        assert np.array_equal(result.T.numpy(), dequantise(blocks))
