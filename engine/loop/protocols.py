"""What the loop asks of a model and of its vocabulary."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from engine.model.rows import StepRows
from engine.model.statistics import RawStatistics


class SlotStorage(Protocol):
    """What the loop asks of the place where keys and values lie."""

    slots: int

    def move(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Copy slots in every layer; everything is read before anything is written."""


class StepDecoder(Protocol):
    """What the loop asks of a model; see `engine.model.loading` for those there are."""

    @property
    def storage(self) -> SlotStorage:
        """Where keys and values lie."""

    def forward(self, step: StepRows) -> Tensor:
        """Write the rows' keys and values, return raw logits [Q, V] float32."""

    def statistics(self, logits: Tensor) -> list[RawStatistics]:
        """Summarise rows of raw logits [Q, V], each by itself."""


class Vocabulary(Protocol):
    """What the loop asks of a tokenizer."""

    eos_ids: frozenset[int]

    def piece(self, token_id: int) -> bytes:
        """Return the bytes that a token appends."""
