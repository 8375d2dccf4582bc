"""Single projections on the block kernels, for what is no whole dense model."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from engine.dfm.blocks import Bytes
from engine.errors import UnsupportedModel
from engine.kernels.cpu.ops import handle, open_runtime
from engine.kernels.cpu.twin import TwinRuntime
from engine.kernels.cpu.weights import BlockMatrix, Runtime
from engine.kernels.linear import BLOCK_LINEAR, Linear
from engine.kernels.tiles import ANY_COUNT, CANDIDATES


def block_matrix(weight: Tensor, bias: Tensor | None = None, *, bits: int = 8) -> BlockMatrix:
    """Round a weight [N, K] to blocks of 8 or 4 bits; K must be a multiple of 32."""
    kind = {8: GGMLQuantizationType.Q8_0, 4: GGMLQuantizationType.Q4_1}[bits]
    values = weight.detach().float().cpu().numpy()
    blocks = np.asarray(quantize(values, kind), dtype=np.uint8)
    return BlockMatrix(blocks.reshape(len(values), values.shape[1] // 32, -1), bias)


def block_linear(weights: BlockMatrix, runtime: Runtime) -> Linear:
    """Prepare one projection; any number of rows treats each row alike."""
    matrix = runtime.matrix(weights)
    number = handle(matrix)

    def compute(rows: Tensor, _matrix: object = matrix) -> Tensor:
        result: Tensor = torch.ops.dflash.block_linear(rows, number)
        return result

    return Linear(compute, CANDIDATES)


class BlockLinearBackend:
    """The file's own blocks, projection by projection; what lies between is computed in torch.

    For mixtures of experts: of a dense model the kernels compute whole steps, and faster. As with
    torch, the last bits depend on the machine.
    """

    name = BLOCK_LINEAR
    kept = torch.float32

    def __init__(self, threads: int) -> None:
        self._runtime = open_runtime(threads)
        self.instruction_set = self._runtime.instruction_set

    @property
    def native(self) -> bool:
        """Whether the kernels are compiled ones, with threads of their own."""
        return not isinstance(self._runtime, TwinRuntime)

    def prepare(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """Raise UnsupportedModel: nothing is rounded here that the file has not."""
        raise UnsupportedModel(
            f"backend {self.name!r} takes weights in blocks; convert the model with --quant-type q4"
            " or q8"
        )

    def prepare_blocks(self, blocks: Bytes, bias: Tensor | None, device: torch.device) -> Linear:
        """Return blocks repacked; their memory is freed with the result."""
        matrix = self._runtime.matrix(BlockMatrix(blocks, bias), passing=True)
        return Linear(matrix.project, ANY_COUNT)
