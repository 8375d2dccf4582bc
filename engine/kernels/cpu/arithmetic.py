"""The native kernels' arithmetic, operation by operation, in torch.

Every function returns the bits that `native/functions.h` and its neighbours return. Products,
sums, quotients and roots are rounded alike everywhere; what has to be imitated is the fused
multiply-add, the order of sums, and the exponential.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

LANES = 16  # a sum's partial sums, of positions equal modulo 16
CHUNK = 4096  # logits summed as one part of a row's statistics

# a float64's bits below a float32's last one, and the value of them half way between two float32
_TAIL_BITS = (1 << 29) - 1
_HALF_WAY = 1 << 28

_EXPONENTIAL = (
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
    *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
)


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Return a * b + c for float32 tensors, rounded once.

    The product of two float32 is exact in float64; the sum is not, and where its rounding lands
    half way between two float32, the error decides.
    """
    product, addend = a.double() * b.double(), c.double()
    total = product + addend
    undecided = (total.view(torch.int64) & _TAIL_BITS) == _HALF_WAY
    if undecided.any():
        total[undecided] = _nudged(
            *(part.expand_as(total)[undecided] for part in (total, product, addend))
        )
    return total.float()


def _nudged(total: Tensor, product: Tensor, addend: Tensor) -> Tensor:
    """Return the next float64 in the direction of what `product + addend` lost, if anything."""
    other = total - product
    lost = (product - (total - other)) + (addend - other)
    outward = (lost > 0) == (total > 0)
    bits = total.view(torch.int64) + torch.where(outward, 1, -1)
    return torch.where(lost == 0, total, bits.view(torch.float64))


def exponential(x: Tensor) -> Tensor:
    """Return e to the power of x, clamped to [-87, 88]; Cephes' expf."""
    x = x.clamp(-87.0, 88.0)
    constant = x.new_tensor
    count = torch.round(x * constant(1.44269504))
    rest = fused(count, constant(-0.693359375), x)
    rest = fused(count, constant(2.12194440e-4), rest)
    series = constant(_EXPONENTIAL[0]).expand_as(x)
    for coefficient in _EXPONENTIAL[1:]:
        series = fused(series, rest, constant(coefficient))
    value = fused(series, rest * rest, rest) + 1.0
    return (value.view(torch.int32) + (count.int() << 23)).view(torch.float32)


def lane_sum(values: Tensor) -> Tensor:
    """Sum the last dimension, a multiple of 16: in order within a lane, then across lanes."""
    tiles = values.reshape(*values.shape[:-1], -1, LANES).unbind(-2)
    lanes = torch.zeros_like(tiles[0])
    for tile in tiles:
        lanes = lanes + tile
    width = LANES
    while width > 1:
        width //= 2
        lanes = lanes[..., :width] + lanes[..., width:]
    return lanes[..., 0]


def quantise(values: Tensor, group: int) -> tuple[Tensor, Tensor, Tensor]:
    """Round [..., K] to 8 bits per group: integers [..., K / group, group], scales and sums.

    The integers are whole float32; scales and the integers' sums are [..., K / group].
    """
    groups = values.reshape(*values.shape[:-1], -1, group)
    top = groups.abs().amax(-1)
    # a plain number over a tensor would be a product with the reciprocal
    inverse = torch.where(top > 0, top.new_tensor(127.0) / top, 0.0)
    integers = torch.round(groups * inverse[..., None])
    return integers, top / 127.0, integers.sum(-1)


def rms_norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Return rows [R, K] divided by their root mean square, times `weight` [K]."""
    mean = lane_sum(rows * rows) / rows.shape[-1]
    # torch's own float32 root is not always the nearest one
    root = torch.sqrt((mean + rows.new_tensor(epsilon)).double()).float()
    scale = 1.0 / root
    return rows * scale[:, None] * weight


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """Return silu(gate) * up."""
    return gate / (1.0 + exponential(-gate)) * up


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate heads [R, A, D]: the first half of dims with the second; tables are [R, D / 2]."""
    first, second = heads.chunk(2, dim=-1)
    cosines, sines = cosines[:, None], sines[:, None]
    return torch.cat(
        [fused(first, cosines, -(second * sines)), fused(second, cosines, first * sines)], dim=-1
    )


def summarise(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Summarise rows of logits [Q, V] in chunks, each [Q, chunks].

    Returns a chunk's largest logit, its sum of exp(x - largest), and that sum weighted by
    x - largest.
    """
    length = logits.shape[1]
    count = -(-length // CHUNK)
    chunks = torch.nn.functional.pad(logits, (0, count * CHUNK - length), value=-torch.inf)
    chunks = chunks.view(len(logits), count, CHUNK)
    largest = chunks.amax(-1)
    seen = torch.arange(count * CHUNK).view(count, CHUNK) < length
    shifted = torch.where(seen, chunks, 0.0) - largest[..., None]
    weights = torch.where(seen, exponential(shifted), 0.0)
    lanes = torch.zeros_like(weights[..., :LANES])
    for weight, shift in zip(
        *(
            values.view(*largest.shape, CHUNK // LANES, LANES).unbind(-2)
            for values in (weights, shifted)
        ),
        strict=True,
    ):
        lanes = fused(weight, shift, lanes)
    return largest, lane_sum(weights), lane_sum(lanes)


def combined(
    largest: Sequence[float], sums: Sequence[float], weighted: Sequence[float]
) -> tuple[float, float]:
    """Return log-sum-exp and entropy of one row from its chunks', in double precision."""
    top, total, mean = max(largest), 0.0, 0.0
    for peak, amount, moment in zip(largest, sums, weighted, strict=True):
        shift = peak - top
        factor = math.exp(shift)
        total += factor * amount
        mean += factor * (moment + shift * amount)
    log_total = math.log(total)
    return top + log_total, log_total - mean / total
