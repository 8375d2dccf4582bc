"""Root mean square norm of rows: one program a row, so that rows do not share a sum.

Torch's own reductions pick their order by how many rows there are.

Dims: R rows, K values of each. Grid: R.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rms_norm_kernel(rows, weight, result, width, epsilon, WIDTH: tl.constexpr):
    """Write one row's norm."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, WIDTH)
    inside = place < width
    values = tl.load(rows + row * width + place, mask=inside, other=0.0)
    mean = tl.sum(values * values, axis=0) / width
    scale = 1.0 / tl.sqrt(mean + epsilon)
    factors = tl.load(weight + place, mask=inside, other=0.0)
    tl.store(result + row * width + place, values * scale * factors, mask=inside)


def norm_options(width: int) -> dict[str, Any]:
    """Return what the kernel is compiled with for rows of this width."""
    padded = triton.next_power_of_2(width)
    return {"WIDTH": padded, "num_warps": 4 if padded <= 2048 else 8}


def rms_norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return rows [R, K] float32 over their root mean square, times `weight` [K]."""
    rows = rows.contiguous()
    result = torch.empty_like(rows)
    count, width = rows.shape
    if count:
        rms_norm_kernel[(count,)](rows, weight, result, width, epsilon, **norm_options(width))
    return result
