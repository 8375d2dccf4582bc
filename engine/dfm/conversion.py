"""From GGUF to `.dfm`: dequantised, unpermuted, projections fused."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np

from engine.dfm.container import FloatArray, PendingTensor, write_dfm
from engine.dfm.gguf_source import GgufSource, read_architecture
from engine.dfm.gguf_tokenizer import read_tokenizer
from engine.dfm.header import Architecture, ModelCard, read_cards
from engine.errors import UnsupportedModel

QUANT_TYPES = ("f32",)


def convert_gguf(
    source: Path | str,
    target: Path | str,
    *,
    quant_type: str = "f32",
    rope_theta: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Convert a GGUF file of the llama family and write `target`; return it.

    `progress` hears (bytes written, bytes in all). Raises InvalidModelFile, UnsupportedModel.
    """
    source, target = Path(source), Path(target)
    if quant_type not in QUANT_TYPES:
        raise UnsupportedModel(f"no quant type {quant_type!r}; there is: {', '.join(QUANT_TYPES)}")
    gguf_file = GgufSource(source)
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
        tensors=_tensors(gguf_file, architecture),
        progress=progress,
    )
    return target


def _tensors(source: GgufSource, architecture: Architecture) -> Iterator[PendingTensor]:
    hidden, intermediate = architecture.hidden, architecture.intermediate
    query = architecture.heads * architecture.head_dim
    key_value = architecture.kv_heads * architecture.head_dim
    vocabulary = (architecture.vocab_size, hidden)
    yield _plain(source, "embedding.weight", "token_embd.weight", vocabulary)
    for layer in range(architecture.layers):
        block, name = f"blk.{layer}", f"layers.{layer}"
        yield _plain(
            source, f"{name}.attention_norm.weight", f"{block}.attn_norm.weight", (hidden,)
        )
        for part in ("weight", "bias"):
            if part == "weight" or source.has(f"{block}.attn_q.bias"):
                yield _fused_qkv(source, architecture, name, block, part)
        yield _plain(
            source,
            f"{name}.attention.output.weight",
            f"{block}.attn_output.weight",
            (hidden, query),
        )
        if source.has(f"{block}.attn_output.bias"):
            yield _plain(
                source, f"{name}.attention.output.bias", f"{block}.attn_output.bias", (hidden,)
            )
        yield _plain(source, f"{name}.mlp_norm.weight", f"{block}.ffn_norm.weight", (hidden,))
        yield _stacked(
            source,
            f"{name}.mlp.gate_up.weight",
            (f"{block}.ffn_gate.weight", f"{block}.ffn_up.weight"),
            (2 * intermediate, hidden),
        )
        yield _plain(
            source, f"{name}.mlp.down.weight", f"{block}.ffn_down.weight", (hidden, intermediate)
        )
    yield _plain(source, "final_norm.weight", "output_norm.weight", (hidden,))
    if not architecture.tied_embeddings:
        yield _plain(source, "head.weight", "output.weight", vocabulary)
    assert query >= key_value


def _plain(source: GgufSource, name: str, origin: str, shape: tuple[int, ...]) -> PendingTensor:
    return PendingTensor(name, shape, lambda: source.load(origin, shape))


def _stacked(
    source: GgufSource, name: str, origins: tuple[str, ...], shape: tuple[int, ...]
) -> PendingTensor:
    each = (shape[0] // len(origins), *shape[1:])
    return PendingTensor(
        name, shape, lambda: np.concatenate([source.load(origin, each) for origin in origins])
    )


def _fused_qkv(
    source: GgufSource, architecture: Architecture, name: str, block: str, part: str
) -> PendingTensor:
    queries = architecture.heads * architecture.head_dim
    keys = architecture.kv_heads * architecture.head_dim
    width = (architecture.hidden,) if part == "weight" else ()

    def values() -> FloatArray:
        query = source.load(f"{block}.attn_q.{part}", (queries, *width))
        key = source.load(f"{block}.attn_k.{part}", (keys, *width))
        return np.concatenate(
            [
                unpermute(query, architecture.heads),
                unpermute(key, architecture.kv_heads),
                source.load(f"{block}.attn_v.{part}", (keys, *width)),
            ]
        )

    return PendingTensor(f"{name}.attention.qkv.{part}", (queries + 2 * keys, *width), values)


def unpermute(values: FloatArray, heads: int) -> FloatArray:
    """Undo llama.cpp's row order of query and key weights (pairs next to each other).

    Afterwards a head's first half of rows pairs with its second half, as in the original model.
    """
    rows = values.shape[0]
    paired = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return paired.swapaxes(1, 2).reshape(values.shape)
