"""Projections of few rows: bfloat16 weights, or the .dfm's blocks of 8 and 4 bits, weight-only.

A program owns 16 rows and a strip of outputs, and walks over all inputs in order: no sum is split,
and the tile has one height, so that a row meets the same instructions at any row count. Sixteen
rows are one tensor-core instruction high on every processor there is a target for.

Weights in blocks stay exact: their integers are exact in bfloat16, a group of 32 is multiplied as
it is, and the group's scale is applied to its sum in float32. A minimum is added to every weight
of its group, so it enters as minimum times the sum of the group's inputs. Only the rows are
rounded, to bfloat16.

Dims: m rows, K inputs, N outputs, G groups of 32 inputs. Grid: m / 16 x N / strip; programs that
read the same weights follow each other.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.dfm.blocks import GROUP
from engine.kernels.triton.linear_reference import GroupedWeights
from engine.kernels.triton.running import dot_type

ROWS = 16
DEPTH = 64  # inputs of a tile of bfloat16 weights


# what depends on the row count must not be compiled in: it would be another kernel
@triton.jit(do_not_specialize=["row_count"])
def dense_linear_kernel(
    rows,
    weight,
    bias,
    result,
    row_count,
    inputs,
    outputs,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    STRIP: tl.constexpr,
    DEPTH: tl.constexpr,
    DOT: tl.constexpr,
):
    """Write 16 rows of a strip of outputs; `weight` is [N, K]."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    output = (tl.program_id(1) * STRIP + tl.arange(0, STRIP)).to(tl.int64)
    depth = tl.arange(0, DEPTH)
    left, right = (row < row_count)[:, None], (output < outputs)[:, None]
    total = tl.zeros([ROWS, STRIP], tl.float32)
    for start in range(0, inputs, DEPTH):
        place = start + depth
        inside = (place < inputs)[None, :]
        own = rows + row[:, None] * inputs + place[None, :]
        values = tl.load(own, mask=left & inside, other=0.0).to(DOT)
        others = weight + output[:, None] * inputs + place[None, :]
        weights = tl.load(others, mask=right & inside, other=0.0).to(DOT)
        total = tl.dot(values, tl.trans(weights), total, input_precision="ieee")
    if HAS_BIAS:
        total += tl.load(bias + output, mask=output < outputs, other=0.0)[None, :]
    at = result + row[:, None] * outputs + output[None, :]
    tl.store(at, total, mask=left & (output < outputs)[None, :])


@triton.jit(do_not_specialize=["row_count"])
def grouped_linear_kernel(
    rows,
    integers,
    scales,
    minimums,
    bias,
    result,
    row_count,
    groups,
    outputs,
    FOUR_BITS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    STRIP: tl.constexpr,
    DOT: tl.constexpr,
):
    """Write 16 rows of a strip of outputs; integers are [G, N, 32], or [G, N, 16] pairs."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    output = (tl.program_id(1) * STRIP + tl.arange(0, STRIP)).to(tl.int64)
    left, right = (row < row_count)[:, None], output < outputs
    byte = tl.arange(0, 16 if FOUR_BITS else 32)
    own = rows + row[:, None] * (groups * 32) + byte[None, :]
    total = tl.zeros([ROWS, STRIP], tl.float32)
    for group in range(groups):
        column = group * outputs + output
        width = 16 if FOUR_BITS else 32
        packed = tl.load(
            integers + column[:, None] * width + byte[None, :], mask=right[:, None], other=0
        )
        scale = tl.load(scales + column, mask=right, other=0.0).to(tl.float32)
        values = tl.load(own + group * 32, mask=left, other=0.0).to(DOT)
        if FOUR_BITS:
            # weight j of the group is the low half of byte j, weight j + 16 the high half
            low = (packed & 15).to(tl.float32).to(DOT)
            high = (packed >> 4).to(tl.float32).to(DOT)
            later = tl.load(own + group * 32 + 16, mask=left, other=0.0).to(DOT)
            part = tl.dot(values, tl.trans(low), input_precision="ieee")
            part = tl.dot(later, tl.trans(high), part, input_precision="ieee")
            both = values.to(tl.float32) + later.to(tl.float32)
            minimum = tl.load(minimums + column, mask=right, other=0.0).to(tl.float32)
            total += tl.sum(both, axis=1)[:, None] * minimum[None, :]
        else:
            weights = packed.to(tl.float32).to(DOT)
            part = tl.dot(values, tl.trans(weights), input_precision="ieee")
        total += part * scale[None, :]
    if HAS_BIAS:
        total += tl.load(bias + output, mask=right, other=0.0)[None, :]
    at = result + row[:, None] * outputs + output[None, :]
    tl.store(at, total, mask=left & right[None, :])


def linear_options(outputs: int) -> dict[str, Any]:
    """Return what both kernels are compiled with for a weight of so many outputs."""
    # narrow strips where there are few outputs, or most of the processor would idle
    return {"ROWS": ROWS, "STRIP": 32 if outputs <= 8192 else 64, "num_warps": 4, "num_stages": 4}


def dense_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows [m, K] float32 times `weight` [N, K] bfloat16, plus `bias` [N]: [m, N]."""
    rows = rows.contiguous()
    count, inputs = rows.shape
    outputs = len(weight)
    result = rows.new_empty(count, outputs)
    options = linear_options(outputs)
    dense_linear_kernel[(triton.cdiv(count, ROWS), triton.cdiv(outputs, options["STRIP"]))](
        *(rows, weight, rows if bias is None else bias, result),
        *(count, inputs, outputs),
        HAS_BIAS=bias is not None,
        DEPTH=DEPTH,
        DOT=dot_type(torch.bfloat16),
        **options,
    )
    return result


def grouped_linear(rows: Tensor, weights: GroupedWeights, bias: Tensor | None) -> Tensor:
    """Return rows [m, K] float32 times weights in blocks, plus `bias` [N]: [m, N]."""
    rows = rows.contiguous()
    count, inputs = rows.shape
    groups, outputs, _ = weights.integers.shape
    assert inputs == groups * GROUP, (inputs, groups)
    result = rows.new_empty(count, outputs)
    options = linear_options(outputs)
    grouped_linear_kernel[(triton.cdiv(count, ROWS), triton.cdiv(outputs, options["STRIP"]))](
        *(rows, weights.integers, weights.scales),
        weights.scales if weights.minimums is None else weights.minimums,
        *(rows if bias is None else bias, result, count, groups, outputs),
        FOUR_BITS=weights.minimums is not None,
        HAS_BIAS=bias is not None,
        DOT=dot_type(torch.bfloat16),
        **options,
    )
    return result
