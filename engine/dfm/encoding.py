"""How weights are stored: dequantised, or in blocks (see `engine.dfm.blocks`).

A quant type says how weights of full precision are rounded. What the source has in 4-bit or 8-bit
blocks of 32 is kept bit for bit, whatever the type; its other quantised formats become q8_0.

Biases are kept in single precision whatever the type. A *bias-aware* type insists that they still
are what they were: a source that has rounded them to fewer than 8 bits is refused, since no
conversion brings back what was lost. Weights get no fewer bits than the type's name says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import quantize

from engine.dfm.blocks import Q4_0_BYTES, Q4_1_BYTES, Q8_0_BYTES, Bytes, q4_1_of_q4_0
from engine.dfm.gguf_source import GgufSource, Place
from engine.errors import UnsupportedModel

BIAS_AWARE = {"q4_bias_aware": "q4", "q5_k_m_bias_aware": "q8", "q8_bias_aware": "q8"}
QUANT_TYPES = ("f32", "q4", "q8", *BIAS_AWARE)

_FULL = {"F32", "F16", "BF16"}
_FOUR_BITS = {"Q4_0", "Q4_1"}
_WHOLE_BIASES = _FULL | {"F64", "Q8_0", "Q8_1", "Q8_K"}


def check_biases(source: GgufSource) -> None:
    """Raise UnsupportedModel where a bias has been rounded to fewer than 8 bits."""
    for name in source.names():
        if name.endswith(".bias") and source.type(name) not in _WHOLE_BIASES:
            raise UnsupportedModel(
                f"{source.path}: {name} has been rounded to {source.type(name)}; a bias-aware"
                " conversion needs 8 bits at least, so start from another file"
            )


def block_bytes(
    source: GgufSource, origins: Sequence[str], quant_type: str, *, wide: bool
) -> int | None:
    """Return the bytes of a block for tensors that are fused into one; null for float32.

    `wide` asks for 8 bits where 4 would have to be rounded to: for embedding and head.
    """
    if quant_type == "f32":
        return None
    types = {source.type(origin) for origin in origins}
    if types <= _FOUR_BITS or (types <= _FULL and quant_type == "q4" and not wide):
        return Q4_1_BYTES
    return Q8_0_BYTES


def encode(
    source: GgufSource,
    origin: str,
    shape: tuple[int, int],
    size: int,
    expert: Place | None = None,
) -> Bytes:
    """Return a tensor [N, K] in blocks [N, K / 32, size], rounding no more than it must.

    Raises InvalidModelFile for another shape, UnsupportedModel for a type nobody can read.
    """
    kind, four = source.type(origin), size == Q4_1_BYTES
    target = GGMLQuantizationType.Q4_1 if four else GGMLQuantizationType.Q8_0
    if four and kind == "Q4_0":
        return q4_1_of_q4_0(source.raw(origin, shape, expert).reshape(shape[0], -1, Q4_0_BYTES))
    if kind == target.name:
        blocks = source.raw(origin, shape, expert)
    else:
        blocks = np.asarray(quantize(source.load(origin, shape, expert), target), dtype=np.uint8)
    return blocks.reshape(shape[0], -1, size)
