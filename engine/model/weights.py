"""A model's weights, prepared for a linear backend."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.cache.experts import ExpertCache
from engine.dfm.blocks import GROUP
from engine.dfm.container import ModelFile
from engine.dfm.header import Experts
from engine.errors import InvalidModelFile
from engine.kernels.linear import Fp32Backend, Linear, LinearBackend
from engine.model.experts import FeedForward, Mixture


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Query, key and value are one projection."""

    attention_norm: Tensor  # [hidden]
    qkv: Linear
    output: Linear
    mlp_norm: Tensor  # [hidden]
    block: FeedForward | Mixture


@dataclass(frozen=True, slots=True)
class Weights:
    """The whole model."""

    embedding: Tensor  # [vocab, hidden], in the backend's `kept` precision
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Linear
    experts: ExpertCache[FeedForward] | None  # of all layers; null for a dense model

    @property
    def row_tiles(self) -> tuple[int, ...]:
        """The row counts at which every layer's rows are computed alike, ascending.

        Where the projections have no count in common, a row by itself is always itself.
        """
        first = self.layers[0]
        linears = (first.qkv, first.output, *first.block.linears)
        common = set.intersection(*(set(linear.row_tiles) for linear in linears))
        return tuple(sorted(common)) or (1,)


def load_weights(
    file: ModelFile, backend: LinearBackend, device: torch.device, expert_cache_size: int = 0
) -> Weights:
    """Prepare the weights of a verified file: of a mixture's experts, those that are kept.

    Raises InvalidModelFile when one is missing or misshapen.
    """
    architecture = file.header.model.architecture

    hidden = architecture.hidden
    query = architecture.heads * architecture.head_dim
    fused = query + 2 * architecture.kv_heads * architecture.head_dim

    def tensor(name: str, *shape: int) -> Tensor:
        values = file.tensor(name)
        if values.shape != shape:
            raise InvalidModelFile(
                f"{file.path}: {name} has shape {values.shape}; the architecture says {shape}"
            )
        return torch.from_numpy(values).to(device)

    def linear(name: str, outputs: int, inputs: int, known: Tensor | None = None) -> Linear:
        """Prepare one projection; its values are `known` where they were read already."""
        bias = f"{name}.bias"
        offset = tensor(bias, outputs) if bias in file.header.tensors else None
        name = f"{name}.weight"
        prepared = None
        if file.has_blocks(name):
            blocks = file.blocks(name)
            if (len(blocks), blocks.shape[1] * GROUP) == (outputs, inputs):
                prepared = backend.prepare_blocks(blocks, offset, device)
        if prepared is None:
            values = tensor(name, outputs, inputs) if known is None else known
            prepared = backend.prepare(values, offset)
        return prepared

    def feed_forward(name: str, width: int) -> FeedForward:
        return FeedForward(
            linear(f"{name}.gate_up", 2 * width, hidden), linear(f"{name}.down", hidden, width)
        )

    def block(layer: int) -> FeedForward | Mixture:
        name = f"layers.{layer}.mlp"
        if shape is None or experts is None:
            return feed_forward(name, architecture.intermediate)
        width = shape.shared_intermediate
        rows = shape.count + (width is not None)
        return Mixture(
            layer=layer,
            shape=shape,
            router=exact.prepare(tensor(f"{name}.router.weight", rows, hidden), None),
            shared=None if width is None else feed_forward(f"{name}.shared", width),
            cache=experts,
            table=_table(file, layer) if layer < shape.hashed else None,
        )

    shape, heat, exact = architecture.experts, file.header.expert_heat, Fp32Backend()
    experts = None
    if shape is not None:
        _check_experts(file, shape)
        experts = ExpertCache(
            lambda layer, expert: feed_forward(
                _expert_name(layer, expert), architecture.intermediate
            ),
            *(architecture.layers, shape.count),
            size=expert_cache_size,
            heat=None if heat is None else np.array(heat, dtype=np.int64),
            expect=lambda layer, expert: _read_ahead(file, layer, expert),
        )
    vocabulary = (architecture.vocab_size, hidden)
    embedding = tensor("embedding.weight", *vocabulary).to(backend.kept)
    return Weights(
        embedding=embedding,
        layers=tuple(
            LayerWeights(
                attention_norm=tensor(f"layers.{layer}.attention_norm.weight", hidden),
                qkv=linear(f"layers.{layer}.attention.qkv", fused, hidden),
                output=linear(f"layers.{layer}.attention.output", hidden, query),
                mlp_norm=tensor(f"layers.{layer}.mlp_norm.weight", hidden),
                block=block(layer),
            )
            for layer in range(architecture.layers)
        ),
        final_norm=tensor("final_norm.weight", hidden),
        head=(
            linear("embedding", *vocabulary, known=embedding)
            if architecture.tied_embeddings
            else linear("head", *vocabulary)
        ),
        experts=experts,
    )


def _expert_name(layer: int, expert: int) -> str:
    return f"layers.{layer}.mlp.experts.{expert}"


def _read_ahead(file: ModelFile, layer: int, expert: int) -> None:
    for part in ("gate_up", "down"):
        file.will_need(f"{_expert_name(layer, expert)}.{part}.weight")


def _table(file: ModelFile, layer: int) -> Tensor:
    """Return a hashed layer's experts by token. Raises InvalidModelFile."""
    name, shape = f"layers.{layer}.mlp.experts_by_token", file.header.model.architecture
    table, experts = file.integers(name), shape.experts
    assert experts is not None
    if table.shape != (shape.vocab_size, experts.used):
        raise InvalidModelFile(f"{file.path}: {name} has shape {table.shape}")
    if table.min() < 0 or table.max() >= experts.count or (np.diff(table) <= 0).any():
        raise InvalidModelFile(f"{file.path}: {name} names experts that cannot be")
    return torch.from_numpy(table).long()


def _check_experts(file: ModelFile, experts: Experts) -> None:
    """Raise InvalidModelFile now for an expert that could not be prepared later, in a step."""
    shape = file.header.model.architecture
    extents = {
        "gate_up": (2 * shape.intermediate, shape.hidden),
        "down": (shape.hidden, shape.intermediate),
    }
    for layer, expert in itertools.product(range(shape.layers), range(experts.count)):
        for part, (outputs, inputs) in extents.items():
            name = f"{_expert_name(layer, expert)}.{part}.weight"
            found = file.extent(name)
            if found != (outputs, inputs):
                raise InvalidModelFile(
                    f"{file.path}: {name} has shape {found}; the architecture says"
                    f" {(outputs, inputs)}"
                )
