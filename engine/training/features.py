"""The residual stream of a corpus, behind the layers that a head reads: computed once, kept.

Kept in 8 bits, 32 to a scale, as the native kernels round what they multiply. One file per shard,
written whole or not at all.

Dims: N tokens of a shard, T taps, D hidden.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.model.loading import AnyDecoder
from engine.model.rows import Segment, StepRows
from engine.training.corpus import Shard

CHUNK = 64  # rows of one pass
_GROUP = 32


@dataclass(frozen=True, slots=True)
class Features:
    """A shard's taps."""

    integers: NDArray[np.int8]  # [N, T * D]
    scales: NDArray[np.float16]  # [N, T * D / 32]

    @classmethod
    def joined(cls, parts: Sequence[Features]) -> Features:
        """Put shards' features one behind the other."""
        return cls(
            np.concatenate([part.integers for part in parts]),
            np.concatenate([part.scales for part in parts]),
        )

    def rows(self, tokens: NDArray[np.int64]) -> Tensor:
        """Return the taps of some tokens [A], [A, T * D] float32."""
        integers = torch.from_numpy(self.integers[tokens]).float()
        scales = torch.from_numpy(self.scales[tokens]).float()
        groups = integers.view(*scales.shape, _GROUP) * scales[..., None]
        return groups.flatten(1)


def features_of(
    shard: Shard, folder: Path, decoder: AnyDecoder, tap_layers: Sequence[int]
) -> Features:
    """Read a shard's features, or compute and keep them."""
    path = folder / f"{shard.index:05}.npz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        _write(path, _computed(shard, decoder, tap_layers))
    with np.load(path) as file:
        return Features(file["integers"], file["scales"])


def _computed(shard: Shard, decoder: AnyDecoder, tap_layers: Sequence[int]) -> Features:
    integers, scales = [], []
    for sequence in shard.sequences():
        tokens = torch.from_numpy(sequence.tokens.astype(np.int64))
        for first in range(0, len(tokens), CHUNK):
            step = _chunk(tokens, first, min(first + CHUNK, len(tokens)))
            _, taps = decoder.forward_tapped(step, tap_layers)
            groups = taps.permute(1, 0, 2).reshape(taps.shape[1], -1, _GROUP)
            scale = (groups.abs().amax(2) / 127).half()
            whole = (groups / scale.float().clamp(min=1e-8)[..., None]).round().clamp(-127, 127)
            integers.append(whole.flatten(1).to(torch.int8).numpy())
            scales.append(scale.numpy())
    return Features(np.concatenate(integers), np.concatenate(scales))


def _chunk(tokens: Tensor, first: int, end: int) -> StepRows:
    """A part of a prompt whose token at position i lies in slot i."""
    count = end - first
    positions = torch.arange(first, end)
    tail = positions.expand(count, count).where(torch.ones(count, count).tril() > 0, -1)
    return StepRows(
        token_ids=tokens[first:end],
        positions=positions,
        slots=positions,
        segments=(Segment(torch.arange(first), tail.contiguous()),),
        logit_rows=torch.empty(0, dtype=torch.int64),
    )


def _write(path: Path, features: Features) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(file, integers=features.integers, scales=features.scales)
    os.replace(partial, path)
