"""Head files: what was trained for one model, as safetensors.

Projections are kept in 8-bit blocks where their inputs come in 32s, so that the native kernels
take them as they are; the draft vocabulary is a list of token ids, whose rows of the LM head are
taken from the model itself. A file may hold a block head, phrases, or both. `__metadata__` has:

    format    "dfh/1"
    card      HeadCard as JSON
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from engine.dfm.blocks import GROUP, Q8_0_BYTES
from engine.dfm.header import ModelCard
from engine.draft.head.shape import HeadShape
from engine.draft.phrases import ORDERS, WIDTH, Phrases, Table
from engine.errors import InvalidModelFile

FORMAT = "dfh/1"
_HALF = "predecessors"  # the one vector large enough to be kept in half precision
_NONE = 2**16 - 1  # no token, where tokens are kept in 16 bits

Array = NDArray[Any]
_Kinds = set[tuple[np.dtype[Any], tuple[int, ...]]]


class HeadCard(msgspec.Struct, frozen=True):
    """Whom a head was trained for, and on how much."""

    model: str
    source_sha256: str  # of what the model was converted from, whatever it was quantised to then
    shape: HeadShape | None  # null where there are only phrases
    corpus_tokens: int = 0  # responses it was fitted to
    fitting_s: float = 0.0
    steps: int = 0
    seed: int = 0

    def fits(self, model: ModelCard) -> bool:
        """Whether it was trained for exactly this model, in any quantisation of ours."""
        return self.source_sha256 == model.source_sha256

    def can_serve(self, model: ModelCard) -> bool:
        """Whether it could run on this model at all; it was perhaps trained for a sibling."""
        shape, own = self.shape, model.architecture
        return shape is None or (
            (shape.hidden, shape.heads, shape.kv_heads, shape.head_dim)
            == (own.hidden, own.heads, own.kv_heads, own.head_dim)
            and max(shape.tap_layers) < own.layers
        )


@dataclass(frozen=True, slots=True)
class BlockHeadWeights:
    """A block head's parameters. Groups' outputs follow each other in the rows."""

    vectors: dict[str, NDArray[np.float32]]
    linears: dict[str, Array]  # [out, in / G] float32, or its blocks [out, in / G / 32, 34] uint8
    token_ids: NDArray[np.int32]  # [V] the draft vocabulary, group after group


@dataclass(frozen=True, slots=True)
class HeadFile:
    """Everything in a head file."""

    card: HeadCard
    block: BlockHeadWeights | None
    phrases: Phrases | None

    @property
    def highest_token(self) -> int:
        """The highest token id that it may propose; -1 where it can propose nothing."""
        known = [] if self.block is None else [self.block.token_ids]
        known += [table.tokens for table in self.phrases.tables.values()] if self.phrases else []
        return max((int(ids.max()) for ids in known if ids.size), default=-1)


def write_head(path: Path, head: HeadFile) -> None:
    """Write a head file; `path` appears only when it is whole."""
    tensors: dict[str, Array] = {}
    if head.block is not None:
        tensors |= {f"vector.{name}": value for name, value in head.block.vectors.items()}
        tensors[f"vector.{_HALF}"] = tensors[f"vector.{_HALF}"].astype(np.float16)
        tensors |= {f"linear.{name}": value for name, value in head.block.linears.items()}
        tensors["token_ids"] = head.block.token_ids
    if head.phrases is not None:
        for order, table in head.phrases.tables.items():
            narrow = not len(table.tokens) or table.tokens.max() < _NONE
            kept = np.where(table.tokens < 0, _NONE, table.tokens).astype(np.uint16)
            tensors[f"phrases.{order}.keys"] = table.keys
            tensors[f"phrases.{order}.tokens"] = kept if narrow else table.tokens
            tensors[f"phrases.{order}.probabilities"] = table.probabilities
    partial = path.with_suffix(".partial")
    whole = {name: np.ascontiguousarray(value) for name, value in tensors.items()}
    metadata = {"format": FORMAT, "card": msgspec.json.encode(head.card).decode()}
    save_file(whole, partial, metadata)
    os.replace(partial, path)


def read_card(path: Path) -> HeadCard:
    """Read whom a head is for; its tensors are not read. Raises InvalidModelFile."""
    try:
        with safe_open(path, "numpy") as file:
            metadata = file.metadata() or {}
    except (OSError, SafetensorError) as error:
        raise InvalidModelFile(f"{path} cannot be read as a head: {error}") from error
    if metadata.get("format") != FORMAT:
        raise InvalidModelFile(f"{path} is no head file of format {FORMAT}")
    try:
        return msgspec.json.decode(metadata["card"], type=HeadCard)
    except (KeyError, msgspec.MsgspecError) as error:
        raise InvalidModelFile(f"{path} does not describe a head: {error}") from error


def read_head(path: Path) -> HeadFile:
    """Read a head file, checking every shape. Raises InvalidModelFile."""
    card = read_card(path)
    try:
        with safe_open(path, "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InvalidModelFile(f"{path} cannot be read as a head: {error}") from error
    block = None if card.shape is None else _block(path, card.shape, tensors)
    return HeadFile(card, block, _phrases(path, tensors))


def _block(path: Path, shape: HeadShape, tensors: dict[str, Array]) -> BlockHeadWeights:
    vectors, linears = {}, {}
    for name, extents in shape.vectors.items():
        kind = np.dtype("f2" if name == _HALF else "f4")
        vector = _checked(path, tensors, f"vector.{name}", {(kind, extents)})
        vectors[name] = vector.astype(np.float32)
    for name, (outputs, inputs) in shape.linears.items():
        own = inputs // shape.groups
        accepted: _Kinds = {(np.dtype("f4"), (outputs, own))}
        if own % GROUP == 0:
            accepted.add((np.dtype("u1"), (outputs, own // GROUP, Q8_0_BYTES)))
        linears[name] = _checked(path, tensors, f"linear.{name}", accepted)
    ids = _checked(path, tensors, "token_ids", {(np.dtype("i4"), (shape.vocabulary,))})
    if len(np.unique(ids)) != len(ids) or ids.min() < 0:
        raise InvalidModelFile(f"{path}: its vocabulary repeats a token")
    return BlockHeadWeights(vectors, linears, ids)


def _phrases(path: Path, tensors: dict[str, Array]) -> Phrases | None:
    tables = {}
    for order in ORDERS:
        name = f"phrases.{order}"
        if f"{name}.keys" not in tensors:
            continue
        keys = tensors[f"{name}.keys"]
        wide = (len(keys), WIDTH)
        tokens = _checked(
            path, tensors, f"{name}.tokens", {(np.dtype("u2"), wide), (np.dtype("i4"), wide)}
        )
        if tokens.dtype == np.uint16:
            tokens = np.where(tokens == _NONE, -1, tokens.astype(np.int32))
        tables[order] = Table(
            _checked(path, tensors, f"{name}.keys", {(np.dtype("u4"), (len(keys),))}),
            tokens.astype(np.int32),
            _checked(path, tensors, f"{name}.probabilities", {(np.dtype("u1"), wide)}),
        )
    return Phrases(tables) if tables else None


def _checked(
    path: Path,
    tensors: dict[str, Array],
    name: str,
    accepted: _Kinds,
) -> NDArray[Any]:
    tensor = tensors.get(name)
    if tensor is None or (tensor.dtype, tensor.shape) not in accepted:
        found = "missing" if tensor is None else f"{tensor.dtype} {tensor.shape}"
        raise InvalidModelFile(f"{path}: tensor {name} is {found}")
    return tensor
