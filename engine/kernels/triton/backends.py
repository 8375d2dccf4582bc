"""The linear backends of the GPU: `bf16`, and `int8` and `int4`, whose weights are in blocks.

They are batch-invariant by construction, so that any row count will do: see
`engine.kernels.triton.linear`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from engine.dfm.blocks import GROUP, Q4_1_BYTES, Q8_0_BYTES, Bytes
from engine.errors import UnsupportedModel
from engine.kernels.cpu.linear import block_matrix
from engine.kernels.linear import Linear
from engine.kernels.tiles import ANY_COUNT
from engine.kernels.triton.linear import dense_linear, grouped_linear
from engine.kernels.triton.linear_reference import grouped_weights


class Bf16Backend:
    """Weights rounded to bfloat16."""

    name = "bf16"
    kept = torch.bfloat16

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Return the weight rounded."""
        rounded = weight.to(torch.bfloat16).contiguous()
        return Linear(lambda rows: dense_linear(rows, rounded, bias), ANY_COUNT)

    def prepare_blocks(self, blocks: Bytes, bias: Tensor | None, device: torch.device) -> None:
        """Return null: blocks are multiplied as the values they stand for."""


class BlockBackend:
    """Weights in blocks of 8 or 4 bits: a file's own where it has them, rounded to them where not.

    Blocks of the other width are taken as the values that they stand for.
    """

    kept = torch.bfloat16

    def __init__(self, bits: int) -> None:
        self.name = f"int{bits}"
        self._bits = bits
        self._block_bytes = {8: Q8_0_BYTES, 4: Q4_1_BYTES}[bits]

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Return the weight rounded to blocks. Raises UnsupportedModel where groups don't fit."""
        if weight.shape[1] % GROUP:
            raise UnsupportedModel(
                f"backend {self.name!r} takes {GROUP} inputs to a group, and not {weight.shape[1]}"
            )
        return self._prepared(block_matrix(weight, bits=self._bits).blocks, bias, weight.device)

    def prepare_blocks(
        self, blocks: Bytes, bias: Tensor | None, device: torch.device
    ) -> Linear | None:
        """Return a file's own blocks, or null where they are of the other width."""
        if blocks.shape[2] != self._block_bytes:
            return None
        return self._prepared(blocks, bias, device)

    def _prepared(self, blocks: Bytes, bias: Tensor | None, device: torch.device) -> Linear:
        weights = grouped_weights(blocks, device)
        return Linear(lambda rows: grouped_linear(rows, weights, bias), ANY_COUNT)
