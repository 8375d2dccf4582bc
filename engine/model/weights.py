"""A model's weights, prepared for a linear backend."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.dfm.container import ModelFile
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

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # [hidden]
    head: Linear

    @property
    def row_tiles(self) -> tuple[int, ...]:
        """The row counts at which every layer's rows are computed alike, ascending."""
        first = self.layers[0]
        linears = (first.qkv, first.output, first.gate_up, first.down)
        return tuple(sorted(set.intersection(*(set(linear.row_tiles) for linear in linears))))


def load_weights(file: ModelFile, backend: LinearBackend, device: torch.device) -> Weights:
    """Prepare every weight of a verified file. Raises InvalidModelFile when one is missing."""
    architecture = file.header.model.architecture

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(file.tensor(name)).to(device)

    def linear(name: str) -> Linear:
        bias = f"{name}.bias"
        return backend.prepare(
            tensor(f"{name}.weight"), tensor(bias) if bias in file.header.tensors else None
        )

    embedding = tensor("embedding.weight")
    return Weights(
        embedding=embedding,
        layers=tuple(
            LayerWeights(
                attention_norm=tensor(f"layers.{layer}.attention_norm.weight"),
                qkv=linear(f"layers.{layer}.attention.qkv"),
                output=linear(f"layers.{layer}.attention.output"),
                mlp_norm=tensor(f"layers.{layer}.mlp_norm.weight"),
                gate_up=linear(f"layers.{layer}.mlp.gate_up"),
                down=linear(f"layers.{layer}.mlp.down"),
            )
            for layer in range(architecture.layers)
        ),
        final_norm=tensor("final_norm.weight"),
        head=backend.prepare(embedding, None) if architecture.tied_embeddings else linear("head"),
    )
