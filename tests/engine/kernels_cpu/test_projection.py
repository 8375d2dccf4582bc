"""A projection in blocks: exact integers, one order of sums, the same bits on every path.

Goal: whoever computes, on however many rows, a row's result is the same. Method: every
instruction set of this machine and the twin, on weights and rows at the ends of their range.
"""

from __future__ import annotations

import resource

import numpy as np
import pytest
import torch
from block_runtimes import NATIVE, RUNTIMES
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.dfm.blocks import dequantise
from engine.errors import UnsupportedModel
from engine.kernels.cpu.linear import block_linear, block_matrix
from engine.kernels.cpu.ops import open_runtime
from engine.kernels.cpu.weights import BlockMatrix


def random_matrix(generator, outputs, inputs, bits, *, extreme=False, bias=False):
    """A matrix whose integers take every value; or only the smallest and the largest."""
    count = outputs * inputs // 32
    scales = generator.uniform(-2, 2, (count, 1 if bits == 8 else 2)).astype("<f2")
    quants = generator.integers(0, 256, (count, 32 if bits == 8 else 16), dtype=np.uint8)
    if extreme:
        ends = [0x80, 0x7F] if bits == 8 else [0x00, 0xFF, 0xF0, 0x0F]
        quants = generator.choice(np.array(ends, np.uint8), quants.shape)
    blocks = np.concatenate([scales.view(np.uint8), quants], axis=1)
    values = torch.from_numpy(generator.normal(size=outputs).astype(np.float32)) if bias else None
    return BlockMatrix(blocks.reshape(outputs, inputs // 32, -1), values)


def rows_of(generator, count, inputs, *, extreme=False):
    rows = generator.normal(size=(count, inputs)).astype(np.float32)
    if extreme:
        rows = np.sign(rows) * np.float32(3.0)  # every integer becomes -127 or 127
    return torch.from_numpy(rows)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    outputs=st.integers(1, 70),
    groups=st.integers(1, 24),
    bits=st.sampled_from([4, 8]),
    count=st.integers(1, 40),
    extreme=st.booleans(),
    bias=st.booleans(),
)
def test_every_path_gives_the_twins_bits(seed, outputs, groups, bits, count, extreme, bias):
    generator = np.random.default_rng(seed)
    weights = random_matrix(generator, outputs, groups * 32, bits, extreme=extreme, bias=bias)
    rows = rows_of(generator, count, groups * 32, extreme=extreme)
    expected = RUNTIMES["twin"].matrix(weights).project(rows)
    for name, runtime in RUNTIMES.items():
        for passing in (False, True):
            matrix = runtime.matrix(weights, passing=passing)
            assert torch.equal(matrix.project(rows), expected), (name, passing)


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("bits", [4, 8])
def test_a_row_does_not_see_how_many_there_are(name, bits):
    generator = np.random.default_rng(bits)
    weights = random_matrix(generator, 48, 576, bits)
    rows = rows_of(generator, 70, 576)
    matrix = RUNTIMES[name].matrix(weights)
    alone = torch.cat([matrix.project(row[None]) for row in rows])
    for count in range(1, 71):
        assert torch.equal(matrix.project(rows[:count]), alone[:count]), count


@pytest.mark.skipif(not NATIVE, reason="the twin has no memory of its own")
def test_a_passing_matrix_takes_its_memory_with_it():
    generator = np.random.default_rng(1)
    weights = random_matrix(generator, 1024, 2048, 8)  # 2.2 MB
    rows = rows_of(generator, 1, 2048)
    runtime = RUNTIMES[NATIVE[0]]

    def peak_kb() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    runtime.matrix(weights, passing=True).project(rows)
    before = peak_kb()
    for _ in range(50):
        runtime.matrix(weights, passing=True).project(rows)
    assert peak_kb() - before < 50_000


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("bits", [4, 8])
def test_the_result_is_the_product_but_for_the_rows_rounding(name, bits):
    generator = np.random.default_rng(7)
    weights = random_matrix(generator, 33, 256, bits, bias=True)
    rows = rows_of(generator, 9, 256)
    assert weights.bias is not None
    exact = rows.double() @ torch.from_numpy(dequantise(weights.blocks)).double().T + weights.bias
    result = RUNTIMES[name].matrix(weights).project(rows)
    assert (result - exact).abs().mean() < 0.01 * exact.abs().mean()


def test_rows_of_zeros_give_the_bias():
    weights = random_matrix(np.random.default_rng(0), 20, 64, 4, bias=True)
    for name, runtime in RUNTIMES.items():
        result = runtime.matrix(weights).project(torch.zeros(3, 64))
        assert torch.equal(result, weights.bias.expand(3, 20)), name


def test_a_prepared_projection_is_an_operator_that_any_number_of_rows_may_use():
    generator = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(40, 64, generator=generator), torch.randn(40, generator=generator)
    linear = block_linear(block_matrix(weight, bias), open_runtime(1))
    rows = torch.randn(5, 64, generator=generator)
    result = linear.compute(rows)
    assert (result - (rows @ weight.T + bias)).abs().max() < 0.3
    assert linear.row_tiles
    assert torch.equal(linear.compute(rows[:3]), result[:3])


def test_an_instruction_set_that_is_not_there_is_refused():
    with pytest.raises(UnsupportedModel):
        open_runtime(1, "sparc")
