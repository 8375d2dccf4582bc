"""Reading GGUF files: their metadata, checked, and their tensors, dequantised.

Only `general.architecture == "llama"` is understood. Formats: ggml's gguf.md; dequantisation by
the `gguf` library.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.quants import dequantize

from engine.dfm.blocks import Bytes, FloatArray
from engine.dfm.header import Architecture, RopeProfile
from engine.errors import InvalidModelFile, UnsupportedModel

FAMILIES = ("llama",)


class GgufSource:
    """An opened GGUF file. Values are read on demand from the mapped file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except OSError as error:
            raise InvalidModelFile(f"{path} cannot be read: {error.strerror}") from error
        except Exception as error:
            # the library answers damage with whatever numpy or struct raised
            raise InvalidModelFile(f"{path} is not a whole GGUF file: {error}") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        self.family: str = self.value("general.architecture")

    def value(self, key: str, default: Any = None) -> Any:
        """Return a metadata value. Raises InvalidModelFile when absent and without default."""
        field = self._reader.get_field(key)
        if field is not None:
            return field.contents()
        if default is None:
            raise InvalidModelFile(f"{self.path} has no {key}")
        return default

    def find(self, key: str) -> Any | None:
        """Return a metadata value or None."""
        field = self._reader.get_field(key)
        return None if field is None else field.contents()

    def has(self, name: str) -> bool:
        """Tell whether a tensor exists."""
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, rows first. Raises InvalidModelFile when it is absent."""
        return tuple(int(extent) for extent in reversed(self._tensor(name).shape))

    def load(self, name: str) -> FloatArray:
        """Return a tensor dequantised to float32."""
        tensor = self._tensor(name)
        try:
            values = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            raise UnsupportedModel(
                f"{self.path}: tensor {name} has type {tensor.tensor_type.name}"
            ) from error
        return np.asarray(values, dtype=np.float32).reshape(self.shape(name))

    def type(self, name: str) -> str:
        """Return a tensor's type, such as "Q4_1"."""
        return str(self._tensor(name).tensor_type.name)

    def raw(self, name: str) -> Bytes:
        """Return the bytes of a quantised matrix, [N, bytes of a row]."""
        rows, _ = self.shape(name)
        return np.asarray(self._tensor(name).data, dtype=np.uint8).reshape(rows, -1)

    def types(self) -> tuple[str, ...]:
        """Return the tensor types that occur, sorted."""
        return tuple(sorted({tensor.tensor_type.name for tensor in self._reader.tensors}))

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
    if source.find("llama.expert_count"):
        raise UnsupportedModel(f"{source.path} is a mixture of experts; only dense models run")
    heads = int(source.value("llama.attention.head_count"))
    kv_heads = int(source.value("llama.attention.head_count_kv", heads))
    hidden = int(source.value("llama.embedding_length"))
    head_dim = int(source.value("llama.attention.key_length", hidden // heads))
    vocab_size, embedding_width = source.shape("token_embd.weight")
    if embedding_width != hidden or heads % kv_heads:
        raise InvalidModelFile(f"{source.path} contradicts itself: widths or head counts")
    return Architecture(
        family=source.family,
        layers=int(source.value("llama.block_count")),
        hidden=hidden,
        intermediate=int(source.value("llama.feed_forward_length")),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab_size,
        context_length=int(source.value("llama.context_length")),
        norm_epsilon=float(source.value("llama.attention.layer_norm_rms_epsilon")),
        tied_embeddings=not source.has("output.weight"),
        rope=_read_rope(source, head_dim, rope_theta),
    )


def _read_rope(source: GgufSource, head_dim: int, override: float | None) -> RopeProfile:
    theta = override if override is not None else source.find("llama.rope.freq_base")
    if theta is None:
        raise InvalidModelFile(
            f"{source.path} does not say its rope theta; give it with --rope-theta"
        )
    if not 1 < theta < math.inf:
        raise InvalidModelFile(f"{source.path}: {theta} is no rope theta")
    dimensions = int(source.value("llama.rope.dimension_count", head_dim))
    if dimensions != head_dim:
        raise UnsupportedModel(f"{source.path} rotates {dimensions} of {head_dim} head dimensions")
    scaling = source.find("llama.rope.scaling.type") or "none"
    if scaling not in ("none", "linear"):
        raise UnsupportedModel(f"{source.path} scales rope by {scaling!r}; supported: none, linear")
    factor = float(source.value("llama.rope.scaling.factor", 1.0)) if scaling == "linear" else 1.0
    factors = None
    if source.has("rope_freqs.weight"):
        factors = tuple(float(value) for value in source.load("rope_freqs.weight"))
    return RopeProfile(
        theta=float(theta),
        dimensions=dimensions,
        scaling_factor=factor,
        frequency_factors=factors,
    )
