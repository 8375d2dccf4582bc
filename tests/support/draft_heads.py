"""Random untrained heads for tiny models: guesses are wild, but every part of serving runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from engine.dfm.container import ModelFile
from engine.draft.head.file import BlockHeadWeights, HeadCard, HeadFile
from engine.draft.head.shape import HeadShape
from engine.kernels.cpu.linear import block_matrix


def tiny_shape(model: Path, **changes: object) -> HeadShape:
    """A head's shape for the model at `model`, small in everything else."""
    own = ModelFile.open(model).header.model.architecture
    sizes = {
        "hidden": own.hidden,
        "heads": own.heads,
        "kv_heads": own.kv_heads,
        "head_dim": own.head_dim,
        "tap_layers": (0, own.layers - 1),
        "window": 8,
        "vocabulary": 96,
        "intermediate": 64,
        "rank": 32,
        **changes,
    }
    return HeadShape(**sizes)


def random_weights(shape: HeadShape, seed: int = 0, vocab_size: int = 269) -> BlockHeadWeights:
    """Weights large enough that some guesses are made with confidence."""
    generator = torch.Generator().manual_seed(seed)
    vectors = {
        name: torch.randn(extents, generator=generator).numpy()
        for name, extents in shape.vectors.items()
    }
    linears = {}
    for name, (outputs, inputs) in shape.linears.items():
        own = inputs // shape.groups
        weight = torch.randn(outputs, own, generator=generator) * (2.0 / own**0.5)
        linears[name] = block_matrix(weight).blocks if own % 32 == 0 else weight.numpy()
    ids = np.random.default_rng(seed).permutation(vocab_size)[: shape.vocabulary]
    return BlockHeadWeights(vectors, linears, ids.astype(np.int32))


def random_head(model: Path, seed: int = 0, **changes: object) -> HeadFile:
    """An untrained head that says it was trained for the model at `model`."""
    card = ModelFile.open(model).header.model
    shape = tiny_shape(model, **changes)
    weights = random_weights(shape, seed, card.architecture.vocab_size)
    return HeadFile(HeadCard(card.name, card.source_sha256, shape), weights, None)
