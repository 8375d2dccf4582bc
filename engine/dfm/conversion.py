"""From GGUF to `.dfm`: unpermuted, projections fused, and dequantised unless told otherwise.

A mixture's experts, stacks in GGUF, become matrices of their own, so that each can be prepared
alone. Routers stay in single precision: what they choose is not a matter of degree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from engine.dfm.blocks import GROUP, Bytes, FloatArray, Indices
from engine.dfm.container import PendingTensor, write_dfm
from engine.dfm.encoding import BIAS_AWARE, QUANT_TYPES, block_bytes, check_biases, encode
from engine.dfm.gguf_source import TID2EID, GgufSource, Place, read_architecture
from engine.dfm.gguf_tokenizer import read_tokenizer
from engine.dfm.header import Architecture, Experts, ModelCard, read_cards
from engine.errors import InvalidModelFile, UnsupportedModel

_Element = TypeVar("_Element", bound=np.generic)


def convert_gguf(
    source: Path | str,
    target: Path | str,
    *,
    quant_type: str,
    rope_theta: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Convert a GGUF file of a family that is computed here and write `target`; return it.

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
    hidden, experts = architecture.hidden, architecture.experts
    permuted = architecture.family == "llama"  # the only one whose rows llama.cpp reorders
    query = architecture.heads * architecture.head_dim
    key_value = architecture.kv_heads * architecture.head_dim

    def matrix(name: str, inputs: int, *parts: _Part, wide: bool = False) -> PendingTensor:
        return _matrix(source, quant_type, f"{name}.weight", inputs, parts, wide=wide)

    vocabulary = _Part("token_embd", architecture.vocab_size)
    yield matrix("embedding", hidden, vocabulary, wide=True)
    for layer in range(architecture.layers):
        block, name = f"blk.{layer}", f"layers.{layer}"
        yield _vector(source, f"{name}.attention_norm.weight", f"{block}.attn_norm.weight", hidden)
        attending = (
            _Part(f"{block}.attn_q", query, heads=architecture.heads if permuted else None),
            _Part(f"{block}.attn_k", key_value, heads=architecture.kv_heads if permuted else None),
            _Part(f"{block}.attn_v", key_value),
        )
        yield matrix(f"{name}.attention.qkv", hidden, *attending)
        if source.has(f"{block}.attn_q.bias"):
            yield _biases(source, f"{name}.attention.qkv.bias", *attending)
        yield matrix(f"{name}.attention.output", query, _Part(f"{block}.attn_output", hidden))
        if source.has(f"{block}.attn_output.bias"):
            origin = f"{block}.attn_output.bias"
            yield _vector(source, f"{name}.attention.output.bias", origin, hidden)
        yield _vector(source, f"{name}.mlp_norm.weight", f"{block}.ffn_norm.weight", hidden)
        if experts is not None:
            yield _router(source, f"{name}.mlp.router.weight", block, hidden, experts)
            if layer < experts.hashed:
                yield _table(source, f"{name}.mlp.experts_by_token", block, architecture, experts)
        for own, kind, width, place in _feed_forward(architecture):
            gate, up, down = (f"{block}.ffn_{part}{kind}" for part in ("gate", "up", "down"))
            inwards = (_Part(origin, width, expert=place) for origin in (gate, up))
            yield matrix(f"{name}.{own}.gate_up", hidden, *inwards)
            yield matrix(f"{name}.{own}.down", width, _Part(down, hidden, expert=place))
    yield _vector(source, "final_norm.weight", "output_norm.weight", hidden)
    if not architecture.tied_embeddings:
        head = _Part("output", architecture.vocab_size)
        yield matrix("head", hidden, head, wide=True)


def _feed_forward(architecture: Architecture) -> Iterator[tuple[str, str, int, Place | None]]:
    """Yield a layer's blocks: our name, how GGUF's names end, the width, the place in a stack."""
    width, experts = architecture.intermediate, architecture.experts
    if experts is None:
        yield "mlp", "", width, None
        return
    for expert in range(experts.count):
        yield f"mlp.experts.{expert}", "_exps", width, (expert, experts.count)
    if experts.shared_intermediate is not None:
        yield "mlp.shared", "_shexp", experts.shared_intermediate, None


def _router(
    source: GgufSource, name: str, block: str, hidden: int, experts: Experts
) -> PendingTensor:
    """A row for each expert; the last one, where there is a shared one, gates that."""
    gates = experts.shared_intermediate is not None

    def values() -> FloatArray:
        rows = source.load(f"{block}.ffn_gate_inp.weight", (experts.count, hidden))
        if not gates:
            return rows
        origin = f"{block}.ffn_gate_inp_shexp.weight"
        shape = (1, hidden) if len(source.shape(origin)) == 2 else (hidden,)
        return np.concatenate([rows, source.load(origin, shape).reshape(1, hidden)])

    return PendingTensor(name, (experts.count + gates, hidden), values)


def _table(
    source: GgufSource, name: str, block: str, architecture: Architecture, experts: Experts
) -> PendingTensor:
    """Each token's experts of a hashed layer, ascending."""
    shape = (architecture.vocab_size, experts.used)

    def values() -> Indices:
        table = np.sort(source.integers(f"{block}.{TID2EID}", shape), axis=1)
        if table.min() < 0 or table.max() >= experts.count or (np.diff(table) == 0).any():
            raise InvalidModelFile(f"{source.path}: {block} names experts that cannot be")
        return table

    return PendingTensor(name, shape, values, dtype="I32")


@dataclass(frozen=True, slots=True)
class _Part:
    """A tensor of the source that becomes rows of one of ours."""

    origin: str  # without ".weight" or ".bias"
    rows: int
    heads: int | None = None  # whose rows llama.cpp has reordered
    expert: Place | None = None  # which of how many that are stacked in it

    @property
    def weight(self) -> str:
        """The tensor that is multiplied."""
        return f"{self.origin}.weight"


def _vector(source: GgufSource, name: str, origin: str, size: int) -> PendingTensor:
    return PendingTensor(name, (size,), lambda: source.load(origin, (size,)))


def _biases(source: GgufSource, name: str, *parts: _Part) -> PendingTensor:
    def values() -> FloatArray:
        loaded = [source.load(f"{part.origin}.bias", (part.rows,)) for part in parts]
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
    size = block_bytes(source, [part.weight for part in parts], quant_type, wide=wide)
    rows = sum(part.rows for part in parts)
    if size is None:

        def values() -> FloatArray:
            loaded = (source.load(part.weight, (part.rows, inputs), part.expert) for part in parts)
            return np.concatenate(
                [_in_order(each, part.heads) for each, part in zip(loaded, parts, strict=True)]
            )

        return PendingTensor(name, (rows, inputs), values)
    if inputs % GROUP:
        raise UnsupportedModel(f"{source.path}: {name} has {inputs} inputs, not a multiple of 32")

    def blocks() -> Bytes:
        encoded = (
            encode(source, part.weight, (part.rows, inputs), size, part.expert) for part in parts
        )
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
