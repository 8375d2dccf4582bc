"""Single projections on the block kernels, for what is no whole model: a draft layer's, say."""

from __future__ import annotations

import numpy as np
import torch
from gguf import GGMLQuantizationType
from gguf.quants import quantize
from torch import Tensor

from engine.kernels.cpu.ops import handle
from engine.kernels.cpu.weights import BlockMatrix, Runtime
from engine.kernels.linear import Linear
from engine.kernels.tiles import CANDIDATES


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
