"""From GGUF to `.dfm`: unpermuted, projections fused, and dequantised unless told otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from engine.dfm.blocks import GROUP, Bytes, FloatArray
from engine.dfm.container import PendingTensor, write_dfm
from engine.dfm.encoding import BIAS_AWARE, QUANT_TYPES, block_bytes, check_biases, encode
from engine.dfm.gguf_source import GgufSource, read_architecture
from engine.dfm.gguf_tokenizer import read_tokenizer
from engine.dfm.header import Architecture, ModelCard, read_cards
from engine.errors import UnsupportedModel

_Element = TypeVar("_Element", bound=np.generic)


def convert_gguf(
    source: Path | str,
    target: Path | str,
    *,
    quant_type: str,
    rope_theta: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Convert a GGUF file of the llama family and write `target`; return it.

    `quant_type` is one of `engine.dfm.encoding.QUANT_TYPES`; `progress` hears (bytes written,
    bytes in all). Raises InvalidModelFile, UnsupportedModel.
    """
    source, target = Path(source), Path(target)
    if quant_type not in QUANT_TYPES:
        raise UnsupportedModel(f"no quant type {quant_type!r}; there is: {', '.join(QUANT_TYPES)}")
    gguf_file = GgufSource(source)
    if quant_type in BIAS_AWARE:
        check_biases(gguf_file)
        quant_type = BIAS_AWARE[quant_type]
    architecture = read_architecture(gguf_file, rope_theta)
    tokenizer_json, tokens = read_tokenizer(gguf_file, architecture.vocab_size)
    with source.open("rb") as file:
        source_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    card = ModelCard(
        name=gguf_file.find("general.name", str) or source.stem,
        architecture=architecture,
        quantisation=quant_type,
        source=source.name,
        source_sha256=source_sha256,
        source_types=gguf_file.types(),
        licence=gguf_file.find("general.license", str),
    )
    # what no reader of the result would take is refused before it is written
    read_cards(source, msgspec.json.encode(card), msgspec.json.encode(tokens))
    write_dfm(
        target,
        model=card,
        tokens=tokens,
        tokenizer_json=tokenizer_json,
        chat_template=gguf_file.find("tokenizer.chat_template", str),
        tensors=_tensors(gguf_file, architecture, quant_type),
        progress=progress,
    )
    return target


def _tensors(
    source: GgufSource, architecture: Architecture, quant_type: str
) -> Iterator[PendingTensor]:
    hidden, intermediate = architecture.hidden, architecture.intermediate
    query = architecture.heads * architecture.head_dim
    key_value = architecture.kv_heads * architecture.head_dim

    def matrix(name: str, inputs: int, *parts: _Part, wide: bool = False) -> PendingTensor:
        return _matrix(source, quant_type, f"{name}.weight", inputs, parts, wide=wide)

    vocabulary = _Part("token_embd.weight", architecture.vocab_size)
    yield matrix("embedding", hidden, vocabulary, wide=True)
    for layer in range(architecture.layers):
        block, name = f"blk.{layer}", f"layers.{layer}"
        yield _vector(source, f"{name}.attention_norm.weight", f"{block}.attn_norm.weight", hidden)
        projections = (
            ("attn_q", query, architecture.heads),
            ("attn_k", key_value, architecture.kv_heads),
            ("attn_v", key_value, None),
        )
        yield matrix(
            f"{name}.attention.qkv",
            hidden,
            *(_Part(f"{block}.{origin}.weight", *rest) for origin, *rest in projections),
        )
        if source.has(f"{block}.attn_q.bias"):
            yield _biases(
                source,
                f"{name}.attention.qkv.bias",
                *(_Part(f"{block}.{origin}.bias", *rest) for origin, *rest in projections),
            )
        yield matrix(
            f"{name}.attention.output", query, _Part(f"{block}.attn_output.weight", hidden)
        )
        if source.has(f"{block}.attn_output.bias"):
            origin = f"{block}.attn_output.bias"
            yield _vector(source, f"{name}.attention.output.bias", origin, hidden)
        yield _vector(source, f"{name}.mlp_norm.weight", f"{block}.ffn_norm.weight", hidden)
        yield matrix(
            f"{name}.mlp.gate_up",
            hidden,
            _Part(f"{block}.ffn_gate.weight", intermediate),
            _Part(f"{block}.ffn_up.weight", intermediate),
        )
        yield matrix(f"{name}.mlp.down", intermediate, _Part(f"{block}.ffn_down.weight", hidden))
    yield _vector(source, "final_norm.weight", "output_norm.weight", hidden)
    if not architecture.tied_embeddings:
        head = _Part("output.weight", architecture.vocab_size)
        yield matrix("head", hidden, head, wide=True)


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of the source that becomes rows of one of ours."""

    origin: str
    rows: int
    heads: int | None = None  # whose rows llama.cpp has reordered


def _vector(source: GgufSource, name: str, origin: str, size: int) -> PendingTensor:
    return PendingTensor(name, (size,), lambda: source.load(origin, (size,)))


def _biases(source: GgufSource, name: str, *parts: _Part) -> PendingTensor:
    def values() -> FloatArray:
        loaded = [source.load(part.origin, (part.rows,)) for part in parts]
        return np.concatenate(
            [_in_order(each, part.heads) for each, part in zip(loaded, parts, strict=True)]
        )

    return PendingTensor(name, (sum(part.rows for part in parts),), values)


def _matrix(
    source: GgufSource,
    quant_type: str,
    name: str,
    inputs: int,
    parts: Sequence[_Part],
    *,
    wide: bool,
) -> PendingTensor:
    size = block_bytes(source, [part.origin for part in parts], quant_type, wide=wide)
    rows = sum(part.rows for part in parts)
    if size is None:

        def values() -> FloatArray:
            loaded = (source.load(part.origin, (part.rows, inputs)) for part in parts)
            return np.concatenate(
                [_in_order(each, part.heads) for each, part in zip(loaded, parts, strict=True)]
            )

        return PendingTensor(name, (rows, inputs), values)
    if inputs % GROUP:
        raise UnsupportedModel(f"{source.path}: {name} has {inputs} inputs, not a multiple of 32")

    def blocks() -> Bytes:
        encoded = (encode(source, part.origin, (part.rows, inputs), size) for part in parts)
        return np.concatenate(
            [_in_order(each, part.heads) for each, part in zip(encoded, parts, strict=True)]
        )

    return PendingTensor(name, (rows, inputs // GROUP, size), blocks, dtype="U8")


def _in_order(values: npt.NDArray[_Element], heads: int | None) -> npt.NDArray[_Element]:
    return values if heads is None else unpermute(values, heads)


def unpermute(values: npt.NDArray[_Element], heads: int) -> npt.NDArray[_Element]:
    """Undo llama.cpp's row order of query and key weights (pairs next to each other).

    Afterwards a head's first half of rows pairs with its second half, as in the original model.
    """
    rows = values.shape[0]
    paired = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)
