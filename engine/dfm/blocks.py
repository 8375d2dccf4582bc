"""Weights in blocks of 32, as GGUF has them: small integers with a scale, some with a minimum.

A tensor [N, K] in blocks is bytes [N, K / 32, B], and B tells the format:

    q4_1  20 bytes  scale (fp16), minimum (fp16), 16 bytes: weight j low, weight j + 16 high
    q8_0  34 bytes  scale (fp16), 32 signed bytes

A weight is `integer * scale`, plus the minimum. Layouts: ggml's block_q4_1 and block_q8_0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

GROUP = 32
Q4_0_BYTES = 18  # read, never kept
Q4_1_BYTES = 20
Q8_0_BYTES = 34
BLOCK_BYTES = (Q4_1_BYTES, Q8_0_BYTES)

Bytes = npt.NDArray[np.uint8]
FloatArray = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int32]


class Unpacked(NamedTuple):
    """The parts of a tensor in blocks."""

    integers: npt.NDArray[np.int8]  # [N, K / 32, 32]: 0..15 or -128..127
    scales: FloatArray  # [N, K / 32]
    minimums: FloatArray | None  # [N, K / 32]; null for q8_0, which has none


def unpack(blocks: Bytes) -> Unpacked:
    """Take blocks [N, K / 32, B] apart, exactly."""
    if blocks.shape[-1] == Q8_0_BYTES:
        return Unpacked(
            np.ascontiguousarray(blocks[..., 2:]).view(np.int8), _halves(blocks[..., :2]), None
        )
    assert blocks.shape[-1] == Q4_1_BYTES, blocks.shape
    pairs = blocks[..., 4:]
    integers = np.concatenate([pairs & 15, pairs >> 4], axis=-1).astype(np.int8)
    return Unpacked(integers, _halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def dequantise(blocks: Bytes) -> FloatArray:
    """Return the weights [N, K] that blocks [N, K / 32, B] stand for."""
    integers, scales, minimums = unpack(blocks)
    weights = integers.astype(np.float32) * scales[..., None]
    if minimums is not None:
        weights += minimums[..., None]
    return weights.reshape(len(blocks), -1)


def q4_1_of_q4_0(blocks: Bytes) -> Bytes:
    """Rewrite ggml's q4_0 blocks [N, K / 32, 18], whose integers are 8 too large, as q4_1.

    Exact: the minimum is -8 times the scale.
    """
    scales = np.ascontiguousarray(blocks[..., :2]).view("<f2")
    return np.concatenate([blocks[..., :2], (scales * -8).view(np.uint8), blocks[..., 2:]], axis=-1)


def _halves(pair: Bytes) -> FloatArray:
    return np.ascontiguousarray(pair).view("<f2")[..., 0].astype(np.float32)
