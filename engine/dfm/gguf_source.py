"""Reading GGUF files: their metadata, checked, and their tensors, dequantised.

What `general.architecture` may be is in `engine.dfm.header.FAMILIES`. Formats: ggml's gguf.md;
dequantisation by the `gguf` library.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeVar

import gguf
import msgspec
import numpy as np
from gguf.quants import dequantize

from engine.dfm.blocks import Bytes, FloatArray, Indices
from engine.dfm.header import FAMILIES, Architecture, Experts, RopeProfile
from engine.errors import InvalidModelFile, UnsupportedModel

T = TypeVar("T")

Place = tuple[int, int]  # which expert, of how many that are stacked in one tensor

MIXTURES = ("qwen2moe",)  # families that are never dense
TID2EID = "ffn_gate_tid2eid.weight"  # of a hashed layer, as DeepSeek-V4 calls it
SOFTMAX_GATING = 1  # gguf.ExpertGatingFuncType.SOFTMAX


class _Reader(gguf.GGUFReader):
    """The library's reader, which takes what lies behind the end of a file for empty."""

    def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
        values = super()._get(offset, dtype, count, override_order)
        if len(values) < int(count):
            raise ValueError("it ends inside a value")
        return values


class GgufSource:
    """An opened GGUF file. Values are read on demand from the mapped file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = _Reader(path)
        except OSError as error:
            raise InvalidModelFile(f"{path} cannot be read: {error.strerror}") from error
        except Exception as error:
            # the library answers damage with whatever numpy or struct raised
            raise InvalidModelFile(f"{path} is not a whole GGUF file: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.family = self.value("general.architecture", str)

    def value(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return a metadata value of type `kind`.

        Raises InvalidModelFile when it is of another, or absent and without default.
        """
        value = self.find(key, kind)
        if value is not None:
            return value
        if default is None:
            raise InvalidModelFile(f"{self.path} has no {key}")
        return default

    def find(self, key: str, kind: type[T]) -> T | None:
        """Return a metadata value or None. Raises InvalidModelFile when it is of another type."""
        field = self._reader.get_field(key)
        if field is None:
            return None
        try:
            return msgspec.convert(field.contents(), kind)
        except Exception as error:
            # text that is not UTF-8, or whatever the library makes of a damaged field
            raise InvalidModelFile(
                f"{self.path}: this GGUF's {key} cannot be read: {error}"
            ) from error

    def names(self) -> tuple[str, ...]:
        """Return the names of all tensors, in the file's order."""
        return tuple(self._tensors)

    def has(self, name: str) -> bool:
        """Tell whether a tensor exists."""
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, rows first. Raises InvalidModelFile when it is absent."""
        return tuple(int(extent) for extent in reversed(self._tensor(name).shape))

    def load(self, name: str, shape: tuple[int, ...], expert: Place | None = None) -> FloatArray:
        """Return a tensor dequantised to float32. Raises InvalidModelFile for another shape.

        `expert` says which of a stack's matrices it is to be.
        """
        kind = self._tensor(name).tensor_type
        try:
            values = dequantize(self._data(name, shape, expert), kind)
        except NotImplementedError as error:
            raise UnsupportedModel(f"{self.path}: tensor {name} has type {kind.name}") from error
        return np.asarray(values, dtype=np.float32).reshape(shape)

    def integers(self, name: str, shape: tuple[int, int]) -> Indices:
        """Return a table of int32. Raises InvalidModelFile for another type or shape."""
        if self.type(name) != "I32":
            raise InvalidModelFile(f"{self.path}: {name} is {self.type(name)}, not I32")
        return np.asarray(self._data(name, shape, None), dtype=np.int32).reshape(shape)

    def type(self, name: str) -> str:
        """Return a tensor's type, such as "Q4_1"."""
        return str(self._tensor(name).tensor_type.name)

    def raw(self, name: str, shape: tuple[int, int], expert: Place | None = None) -> Bytes:
        """Return a quantised matrix's bytes, row by row. Raises InvalidModelFile as `load` does."""
        return np.asarray(self._data(name, shape, expert), dtype=np.uint8).reshape(shape[0], -1)

    def types(self) -> tuple[str, ...]:
        """Return the tensor types that occur, sorted."""
        return tuple(sorted({tensor.tensor_type.name for tensor in self._reader.tensors}))

    def _data(self, name: str, shape: tuple[int, ...], expert: Place | None) -> Any:
        whole = shape if expert is None else (expert[1], *shape)
        if self.shape(name) != whole:
            raise InvalidModelFile(
                f"{self.path}: {name} has shape {self.shape(name)}; the architecture says {whole}"
            )
        data = self._tensor(name).data
        return data if expert is None else data[expert[0]]

    def _tensor(self, name: str) -> Any:
        try:
            return self._tensors[name]
        except KeyError:
            raise InvalidModelFile(f"{self.path} has no tensor {name}") from None


def read_architecture(source: GgufSource, rope_theta: float | None) -> Architecture:
    """Read and check the network's shape; `rope_theta` overrides the file's.

    Raises UnsupportedModel, or InvalidModelFile for what is missing or contradictory.
    """
    if source.family not in FAMILIES:
        raise UnsupportedModel(
            f"{source.path} has architecture {source.family!r}; supported: {', '.join(FAMILIES)}"
        )
    family = source.family
    heads = source.value(f"{family}.attention.head_count", int)
    kv_heads = source.value(f"{family}.attention.head_count_kv", int, heads)
    hidden = source.value(f"{family}.embedding_length", int)
    embedding = source.shape("token_embd.weight")
    if min(heads, kv_heads) < 1 or heads % kv_heads or embedding[1:] != (hidden,):
        raise InvalidModelFile(f"{source.path} contradicts itself: widths or head counts")
    head_dim = source.value(f"{family}.attention.key_length", int, hidden // heads)
    experts = _read_experts(source)
    intermediate = source.value(f"{family}.feed_forward_length", int)
    if experts is not None:
        intermediate = source.value(f"{family}.expert_feed_forward_length", int, intermediate)
    return Architecture(
        family=family,
        layers=source.value(f"{family}.block_count", int),
        hidden=hidden,
        intermediate=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=embedding[0],
        context_length=source.value(f"{family}.context_length", int),
        norm_epsilon=source.value(f"{family}.attention.layer_norm_rms_epsilon", float),
        tied_embeddings=not source.has("output.weight"),
        rope=_read_rope(source, head_dim, rope_theta),
        experts=experts,
    )


def _read_experts(source: GgufSource) -> Experts | None:
    """Read a mixture's shape; null for a dense model. Raises as `read_architecture` does."""
    family = source.family
    count = source.find(f"{family}.expert_count", int)
    if not count:
        if family in MIXTURES:
            raise InvalidModelFile(f"{source.path} does not say how many experts it has")
        return None
    shared = source.has("blk.0.ffn_gate_shexp.weight")
    for is_so, what in (
        (
            source.value(f"{family}.expert_gating_func", int, SOFTMAX_GATING) != SOFTMAX_GATING,
            "experts gated by another function than softmax",
        ),
        (
            source.value(f"{family}.expert_weights_scale", float, 1.0) not in (0.0, 1.0),
            "scaled expert weights",
        ),
        (source.value(f"{family}.expert_group_count", int, 0) > 1, "experts in groups"),
        (
            shared is not (family in MIXTURES),
            "shared experts" if shared else "no shared expert",
        ),
        (source.has("blk.0.ffn_gate.0.weight"), "a tensor for each expert, not a stack"),
    ):
        if is_so:
            raise UnsupportedModel(f"{source.path} has {what}; no {family!r} of that kind runs")
    width = None
    if shared:
        width = source.shape("blk.0.ffn_gate_shexp.weight")[0]
    layers = source.value(f"{family}.block_count", int)
    hashed = [source.has(f"blk.{layer}.{TID2EID}") for layer in range(layers)]
    if sum(hashed) != sum(hashed[: sum(hashed)]):
        raise UnsupportedModel(f"{source.path} has hashed layers that are not its first ones")
    return Experts(
        count=count,
        used=source.value(f"{family}.expert_used_count", int),
        normalised=source.value(f"{family}.expert_weights_norm", bool, family not in MIXTURES),
        shared_intermediate=width,
        hashed=sum(hashed),
    )


def _read_rope(source: GgufSource, head_dim: int, override: float | None) -> RopeProfile:
    prefix = f"{source.family}.rope"
    theta = override if override is not None else source.find(f"{prefix}.freq_base", float)
    if theta is None:
        raise InvalidModelFile(
            f"{source.path} does not say its rope theta; give it with --rope-theta"
        )
    if not 1 < theta < math.inf:
        raise InvalidModelFile(f"{source.path}: {theta} is no rope theta")
    dimensions = source.value(f"{prefix}.dimension_count", int, head_dim)
    if dimensions != head_dim:
        raise UnsupportedModel(f"{source.path} rotates {dimensions} of {head_dim} head dimensions")
    scaling = source.find(f"{prefix}.scaling.type", str) or "none"
    if scaling not in ("none", "linear"):
        raise UnsupportedModel(f"{source.path} scales rope by {scaling!r}; supported: none, linear")
    factor = 1.0
    if scaling == "linear":
        factor = source.value(f"{prefix}.scaling.factor", float, 1.0)
    factors = None
    if source.has("rope_freqs.weight"):
        values = source.load("rope_freqs.weight", (head_dim // 2,))
        factors = tuple(float(value) for value in values)
    return RopeProfile(
        theta=float(theta),
        dimensions=dimensions,
        scaling_factor=factor,
        frequency_factors=factors,
    )
