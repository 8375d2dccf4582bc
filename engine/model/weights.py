"""A model's weights, prepared for a linear backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.dfm.blocks import GROUP
from engine.dfm.container import ModelFile
from engine.errors import InvalidModelFile
from engine.kernels.linear import Linear, LinearBackend


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. Query, key and value are one projection, gate and up another."""

    attention_norm: Tensor  # [hidden]
    qkv: Linear
    output: Linear
    mlp_norm: Tensor  # [hidden]
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class Weights:
    """The whole model."""

    embedding: Tensor  # [vocab, hidden], in the backend's `kept` precision
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Linear

    @property
    def row_tiles(self) -> tuple[int, ...]:
        """The row counts at which every layer's rows are computed alike, ascending.

        Where the projections have no count in common, a row by itself is always itself.
        """
        first = self.layers[0]
        linears = (first.qkv, first.output, first.gate_up, first.down)
        common = set.intersection(*(set(linear.row_tiles) for linear in linears))
        return tuple(sorted(common)) or (1,)


def load_weights(file: ModelFile, backend: LinearBackend, device: torch.device) -> Weights:
    """Prepare every weight of a verified file.

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
                gate_up=linear(
                    f"layers.{layer}.mlp.gate_up", 2 * architecture.intermediate, hidden
                ),
                down=linear(f"layers.{layer}.mlp.down", hidden, architecture.intermediate),
            )
            for layer in range(architecture.layers)
        ),
        final_norm=tensor("final_norm.weight", hidden),
        head=(
            linear("embedding", *vocabulary, known=embedding)
            if architecture.tied_embeddings
            else linear("head", *vocabulary)
        ),
    )
