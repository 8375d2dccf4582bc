"""A head put beside a loaded model: fed by its forward passes, on its own kind of arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.dfm.blocks import GROUP, dequantise
from engine.dfm.container import ModelFile
from engine.draft.head.block_head import FLOOR, WIDTH, BlockHead, ModelSide, Native, Projection
from engine.draft.head.file import BlockHeadWeights
from engine.draft.head.shape import BEAM, HeadShape
from engine.draft.proposals import Foreseen
from engine.kernels.cpu.draft_head import NativeDraftHead
from engine.kernels.cpu.runtime import NativeMatrix, NativeModel
from engine.kernels.cpu.weights import BlockMatrix, Runtime
from engine.model.rows import StepRows
from engine.model.statistics import RawStatistics


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
    *,
    runtime: Runtime | None = None,
    beside: object = None,
) -> BlockHead:
    """Prepare a head for a model, natively where a runtime is given, in fp32 otherwise.

    A head whose layers do not attend drafts in one call when the model `beside` it is native, too.
    """
    tied = model.header.model.architecture.tied_embeddings
    name = "embedding.weight" if tied else "head.weight"

    def embed(tokens: Sequence[int]) -> Tensor:
        return torch.from_numpy(_rows_of(model, "embedding.weight", np.array(tokens)))

    def vocabulary(ids: NDArray[np.int64], first: int, end: int) -> NDArray[Any]:
        if model.in_blocks and first % GROUP == end % GROUP == 0:
            return np.ascontiguousarray(model.blocks(name)[ids, first // GROUP : end // GROUP])
        return np.ascontiguousarray(_rows_of(model, name, ids)[:, first:end])

    def prepare(weight: NDArray[Any]) -> Projection:
        if weight.dtype != np.uint8:
            return DenseMatrix(torch.from_numpy(weight))
        if runtime is None:
            return DenseMatrix(torch.from_numpy(dequantise(weight)))
        return runtime.matrix(BlockMatrix(weight))

    head = BlockHead(shape, weights, ModelSide(embed, vocabulary, prepare), slots)
    if isinstance(beside, NativeModel):
        head.native = _native(head, weights, beside)
    return head


@dataclass(frozen=True, slots=True)
class DenseMatrix:
    """Weights [out, in] in single precision."""

    weight: Tensor

    def project(self, rows: Tensor) -> Tensor:
        """Multiply rows [m, in]: [m, out]."""
        return functional.linear(rows, self.weight)


def _native(head: BlockHead, weights: BlockHeadWeights, model: NativeModel) -> Native | None:
    """Return the head as one native call; null where it has another form than is compiled."""
    shape = head.shape
    matrices: dict[str, NativeMatrix] = {}
    for name, (matrix, *others) in head.linears.items():
        if others or not isinstance(matrix, NativeMatrix):
            return None
        matrices[name] = matrix
    if shape.attends or shape.intermediate % GROUP:
        return None
    vectors = {name: torch.from_numpy(value) for name, value in weights.vectors.items()}
    native = NativeDraftHead(
        *(model, vectors, matrices, weights.token_ids),
        layers=shape.layers,
        width=WIDTH,
        beam=BEAM,
        floor=FLOOR,
    )

    def foresee(
        roots: Sequence[int], taps: Tensor, known: NDArray[np.bool_], depths: int
    ) -> list[list[Foreseen]]:
        drafts = native.foresee(roots, taps, known, depths)
        return [[Foreseen(*edge) for edge in edges] for edges in drafts]

    return foresee


def _rows_of(model: ModelFile, name: str, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    if model.in_blocks:
        return dequantise(model.blocks(name)[ids])
    return model.tensor(name)[ids]
