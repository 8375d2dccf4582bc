"""Reading GGUF files: their metadata, checked, and their tensors, dequantised.

Only `general.architecture == "llama"` is understood. Formats: ggml's gguf.md; dequantisation by
the `gguf` library.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, TypeVar

import gguf
import msgspec
import numpy as np
from gguf.quants import dequantize

from engine.dfm.blocks import Bytes, FloatArray
from engine.dfm.header import FAMILIES, Architecture, RopeProfile
from engine.errors import InvalidModelFile, UnsupportedModel

T = TypeVar("T")


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

    def load(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """Return a tensor dequantised to float32. Raises InvalidModelFile for another shape."""
        tensor = self._shaped(name, shape)
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.path}: tensor {name} has type {tensor.tensor_type.name}"
            ) from error
        return np.asarray(values, dtype=np.float32).reshape(shape)

    def type(self, name: str) -> str:
        """Return a tensor's type, such as "Q4_1"."""
        return str(self._tensor(name).tensor_type.name)

    def raw(self, name: str, shape: tuple[int, int]) -> Bytes:
        """Return a quantised matrix's bytes, row by row. Raises InvalidModelFile as `load` does."""
        return np.asarray(self._shaped(name, shape).data, dtype=np.uint8).reshape(shape[0], -1)

    def types(self) -> tuple[str, ...]:
        """Return the tensor types that occur, sorted."""
        return tuple(sorted({tensor.tensor_type.name for tensor in self._reader.tensors}))

    def _shaped(self, name: str, shape: tuple[int, ...]) -> Any:
        if self.shape(name) != shape:
            raise InvalidModelFile(
                f"{self.path}: {name} has shape {self.shape(name)}; the architecture says {shape}"
            )
        return self._tensor(name)

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
    if source.find("llama.expert_count", int):
        raise UnsupportedModel(f"{source.path} is a mixture of experts; only dense models run")
    heads = source.value("llama.attention.head_count", int)
    kv_heads = source.value("llama.attention.head_count_kv", int, heads)
    hidden = source.value("llama.embedding_length", int)
    embedding = source.shape("token_embd.weight")
    if min(heads, kv_heads) < 1 or heads % kv_heads or embedding[1:] != (hidden,):
        raise InvalidModelFile(f"{source.path} contradicts itself: widths or head counts")
    head_dim = source.value("llama.attention.key_length", int, hidden // heads)
    return Architecture(
        family=source.family,
        layers=source.value("llama.block_count", int),
        hidden=hidden,
        intermediate=source.value("llama.feed_forward_length", int),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=embedding[0],
        context_length=source.value("llama.context_length", int),
        norm_epsilon=source.value("llama.attention.layer_norm_rms_epsilon", float),
        tied_embeddings=not source.has("output.weight"),
        rope=_read_rope(source, head_dim, rope_theta),
    )


def _read_rope(source: GgufSource, head_dim: int, override: float | None) -> RopeProfile:
    theta = override if override is not None else source.find("llama.rope.freq_base", float)
    if theta is None:
        raise InvalidModelFile(
            f"{source.path} does not say its rope theta; give it with --rope-theta"
        )
    if not 1 < theta < math.inf:
        raise InvalidModelFile(f"{source.path}: {theta} is no rope theta")
    dimensions = source.value("llama.rope.dimension_count", int, head_dim)
    if dimensions != head_dim:
        raise UnsupportedModel(f"{source.path} rotates {dimensions} of {head_dim} head dimensions")
    scaling = source.find("llama.rope.scaling.type", str) or "none"
    if scaling not in ("none", "linear"):
        raise UnsupportedModel(f"{source.path} scales rope by {scaling!r}; supported: none, linear")
    factor = 1.0
    if scaling == "linear":
        factor = source.value("llama.rope.scaling.factor", float, 1.0)
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
