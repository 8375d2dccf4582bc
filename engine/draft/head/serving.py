"""A head put beside a loaded model: fed by its forward passes, on its own kind of arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.dfm.blocks import GROUP, dequantise
from engine.dfm.container import ModelFile
from engine.draft.head.block_head import BlockHead, ModelSide
from engine.draft.head.file import BlockHeadWeights
from engine.draft.head.shape import HeadShape
from engine.kernels.cpu.weights import BlockMatrix, Runtime
from engine.model.rows import StepRows
from engine.model.statistics import RawStatistics

_Rows = Callable[[Tensor], Tensor]


class Storage(Protocol):
    """Where keys and values lie."""

    slots: int

    def move(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Copy slots in every layer."""


class Tappable(Protocol):
    """A decoder that shows its residual stream."""

    @property
    def storage(self) -> Storage:
        """Where keys and values lie."""

    def forward_tapped(self, step: StepRows, layers: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return logits [Q, V] and taps [T, R, hidden]."""

    def statistics(self, logits: Tensor) -> list[RawStatistics]:
        """Summarise rows of raw logits [Q, V], each by itself."""


class FeatureStorage:
    """Keys, values and draft features of every slot, moved together."""

    def __init__(self, storage: Storage, head: BlockHead) -> None:
        self.slots = storage.slots
        self._storage = storage
        self._head = head

    def move(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Copy slots; everything is read before anything is written."""
        self._storage.move(src_slots, dst_slots)
        self._head.move(src_slots, dst_slots)


class TappedDecoder:
    """A decoder whose every pass leaves the rows' features with a head."""

    def __init__(self, decoder: Tappable, head: BlockHead) -> None:
        self.storage = FeatureStorage(decoder.storage, head)
        self._decoder = decoder
        self._head = head

    def forward(self, step: StepRows) -> Tensor:
        """Write the rows' keys, values and features; return raw logits [Q, vocab] float32."""
        logits, taps = self._decoder.forward_tapped(step, self._head.tap_layers)
        self._head.store(step.slots, taps.cpu())
        return logits

    def statistics(self, logits: Tensor) -> list[RawStatistics]:
        """Summarise rows of raw logits [Q, V], each by itself."""
        return self._decoder.statistics(logits)


def open_block_head(
    shape: HeadShape,
    weights: BlockHeadWeights,
    model: ModelFile,
    slots: int,
    runtime: Runtime | None = None,
) -> BlockHead:
    """Prepare a head for a model, natively where a runtime is given, in fp32 otherwise."""
    tied = model.header.model.architecture.tied_embeddings
    name = "embedding.weight" if tied else "head.weight"

    def embed(tokens: Sequence[int]) -> Tensor:
        return torch.from_numpy(_rows_of(model, "embedding.weight", np.array(tokens)))

    def vocabulary(ids: NDArray[np.int64], first: int, end: int) -> NDArray[Any]:
        if model.in_blocks and first % GROUP == end % GROUP == 0:
            return np.ascontiguousarray(model.blocks(name)[ids, first // GROUP : end // GROUP])
        return np.ascontiguousarray(_rows_of(model, name, ids)[:, first:end])

    def prepare(weight: NDArray[Any]) -> _Rows:
        if weight.dtype != np.uint8:
            return _dense(torch.from_numpy(weight))
        if runtime is None:
            return _dense(torch.from_numpy(dequantise(weight)))
        return runtime.matrix(BlockMatrix(weight)).project

    return BlockHead(shape, weights, ModelSide(embed, vocabulary, prepare), slots)


def _rows_of(model: ModelFile, name: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    if model.in_blocks:
        return dequantise(model.blocks(name)[ids])
    return model.tensor(name)[ids]


def _dense(weight: Tensor) -> _Rows:
    return lambda rows: functional.linear(rows, weight)
