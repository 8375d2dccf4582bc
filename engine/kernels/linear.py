"""What a linear backend is, and the exact one: how a weight is kept and multiplied.

Dims: m rows, K inputs, N outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.dfm.blocks import Bytes
from engine.kernels.tiles import CANDIDATES, PROBE_ROWS, agreeing_tiles

BLOCK_LINEAR = "block_linear"
_SEED = 20_240_229


@dataclass(frozen=True, slots=True)
class Linear:
    """A prepared weight. `compute` maps [m, K] to [m, N] for every m in `row_tiles`."""

    compute: Callable[[Tensor], Tensor]
    row_tiles: tuple[int, ...]  # ascending; at these counts a row's bits do not depend on m


def project(linear: Linear, rows: Tensor, tiles: tuple[int, ...]) -> Tensor:
    """Compute rows [sum of `tiles`, K] tile by tile: [sum of `tiles`, N]."""
    if len(tiles) == 1:
        return linear.compute(rows)
    return torch.cat([linear.compute(tile) for tile in torch.split(rows, list(tiles))])


class LinearBackend(Protocol):
    """Prepares weights [N, K]; `name` is printed on receipts."""

    name: str
    kept: torch.dtype  # of what is looked up, not multiplied: embeddings, keys and values

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Return the weight ready to multiply; `weight` must stay valid for as long."""

    def prepare_blocks(
        self, blocks: Bytes, bias: Tensor | None, device: torch.device
    ) -> Linear | None:
        """Return weights in blocks ready to multiply as they are, or null: not in this backend."""


class Fp32Backend:
    """Exact weights in single precision.

    On x86 the weights are packed once for MKL: its packed kernels run faster at few rows than
    `functional.linear`, and sum in one order whatever the row count. Elsewhere the plain call is
    used. The tiles are probed either way, once per shape.
    """

    name = "fp32"
    kept = torch.float32

    def __init__(self) -> None:
        self._row_tiles: dict[tuple[int, int, bool], tuple[int, ...]] = {}

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Return the weight packed where MKL is at hand."""
        compute = _packed(weight, bias) if _can_pack(weight) else _plain(weight, bias)
        shape = (*weight.shape, bias is not None)
        if shape not in self._row_tiles:
            generator = torch.Generator().manual_seed(_SEED)
            probe = torch.randn(PROBE_ROWS, weight.shape[1], generator=generator)
            self._row_tiles[shape] = agreeing_tiles(compute, probe.to(weight.device))
        return Linear(compute, self._row_tiles[shape])

    def prepare_blocks(self, blocks: Bytes, bias: Tensor | None, device: torch.device) -> None:
        """Return null: blocks are multiplied as the values they stand for."""


def _can_pack(weight: Tensor) -> bool:
    on_cpu = weight.device.type == "cpu"
    return on_cpu and torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


def _packed(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    # the count is a hint for the packed layout; 64 serves the smaller ones equally well
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, CANDIDATES[-1])
    multiply = torch.ops.mkl._mkl_linear

    def compute(rows: Tensor) -> Tensor:
        # the last argument is the count to run packed at; any other would fall back
        result: Tensor = multiply(rows, packed, weight, bias, rows.shape[0])
        return result

    return compute


def _plain(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    return lambda rows: functional.linear(rows, weight, bias)
