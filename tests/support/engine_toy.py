"""A model without weights: its logits are a hash of exactly the tokens that a row may see.

Its storage keeps, for every slot, the token that was written there and its position. A row whose
segment names a wrong slot, a stale one or a wrong order gets other logits, or fails an assertion.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import torch
from torch import Tensor

from engine.model.rows import StepRows
from engine.model.statistics import RawStatistics, raw_statistics

VOCAB = 24
EOS = 0


class ToyVocabulary:
    """Every token appends one lower-case letter."""

    eos_ids = frozenset({EOS})

    def piece(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else bytes([96 + token_id])


class ToyStorage:
    """What lies in each slot: a token and its position, or nothing yet."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.tokens = np.full(slots, -1, np.int64)
        self.positions = np.full(slots, -1, np.int64)

    def move(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        src, dst = src_slots.numpy(), dst_slots.numpy()
        assert len(set(dst.tolist())) == len(dst)
        self.tokens[dst], self.positions[dst] = self.tokens[src], self.positions[src]


class ToyDecoder:
    """Mostly an order-1 model, so that drafts are sometimes right; but every bit depends on all."""

    def __init__(self, slots: int = 512) -> None:
        self.storage = ToyStorage(slots)
        self.rows_of_steps: list[int] = []
        self.fail_next: Exception | None = None

    def statistics(self, logits: Tensor) -> list[RawStatistics]:
        return raw_statistics(logits.numpy())

    def forward(self, step: StepRows) -> Tensor:
        if self.fail_next:
            error, self.fail_next = self.fail_next, None
            raise error
        slots = step.slots.numpy()
        assert len(set(slots.tolist())) == len(slots), "two rows write one slot"
        self.storage.tokens[slots] = step.token_ids.numpy()
        self.storage.positions[slots] = step.positions.numpy()
        self.rows_of_steps.append(len(slots))
        logits, row = [], 0
        wanted = set(step.logit_rows.tolist())
        for segment in step.segments:
            for tail in segment.tail.numpy():
                visible = np.concatenate([segment.committed.numpy(), tail[tail >= 0]])
                positions = self.storage.positions[visible]
                assert positions.tolist() == list(range(int(step.positions[row]) + 1))
                assert visible[-1] == slots[row]
                if row in wanted:
                    logits.append(toy_logits(self.storage.tokens[visible].tolist()))
                row += 1
        assert row == len(slots)
        return torch.from_numpy(np.array(logits, np.float32).reshape(-1, VOCAB))


def toy_logits(context: list[int]) -> np.ndarray:
    """Return [VOCAB] float32: a peak set by the last token, and a ripple set by them all."""
    ripple = _random(tuple(context)).normal(size=VOCAB) * 0.7
    return (_peak(context[-1]) + ripple).astype(np.float32)


@functools.cache
def _peak(last: int) -> np.ndarray:
    return _random((last,)).normal(size=VOCAB) * 5


def _random(tokens: tuple[int, ...]) -> np.random.Generator:
    digest = hashlib.sha256(np.array(tokens, np.int64).tobytes()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "little")))
