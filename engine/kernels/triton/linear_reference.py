"""The twin of `linear`, and the weights in blocks as both of them take them.

Rows are rounded to bfloat16 by the kernels' tensor cores, not here: the twin is what they aim at.

Dims: m rows, K inputs, N outputs, G groups of 32 inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from engine.dfm.blocks import Q4_1_BYTES, Bytes


class GroupedWeights(NamedTuple):
    """Weights in blocks, the parts apart and groups first, so that a strip lies together."""

    integers: Tensor  # [G, N, 32] int8; or [G, N, 16] uint8, weight j low and j + 16 high
    scales: Tensor  # [G, N] float16
    minimums: Tensor | None  # [G, N] float16; null for 8 bits, which have none


def grouped_weights(blocks: Bytes, device: torch.device) -> GroupedWeights:
    """Take blocks [N, G, B] of `engine.dfm.blocks` apart, exactly."""
    four_bits = blocks.shape[2] == Q4_1_BYTES

    def part(first: int, last: int | None, dtype: str) -> Tensor:
        values = np.ascontiguousarray(blocks.swapaxes(0, 1)[..., first:last])
        return torch.from_numpy(values.view(dtype)).to(device)

    return GroupedWeights(
        integers=part(4, None, "u1") if four_bits else part(2, None, "i1"),
        scales=part(0, 2, "<f2")[..., 0].contiguous(),
        minimums=part(2, 4, "<f2")[..., 0].contiguous() if four_bits else None,
    )


def dense_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return rows [m, K] float32 times `weight` [N, K] in any precision, plus `bias` [N]."""
    return torch.nn.functional.linear(rows, weight.float(), bias)


def grouped_linear(rows: Tensor, weights: GroupedWeights, bias: Tensor | None) -> Tensor:
    """Return rows [m, K] float32 times weights in blocks, plus `bias` [N]: [m, N]."""
    integers, scales, minimums = weights
    if minimums is None:
        values = integers.float()
    else:
        values = torch.cat([integers & 15, integers >> 4], dim=2).float()
    values = values * scales.float()[..., None]
    if minimums is not None:
        values = values + minimums.float()[..., None]
    return dense_linear(rows, values.transpose(0, 1).flatten(1), bias)
