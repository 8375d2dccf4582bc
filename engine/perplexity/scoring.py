"""Scoring token windows with the bare decoder.

Dims: Q rows whose logits are wanted, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from engine.model.rows import Segment, StepRows

CHUNK_ROWS = 64


class Decoder(Protocol):
    """What scoring asks of a model."""

    def forward(self, step: StepRows) -> Tensor:
        """Write the rows' keys and values, return raw logits [Q, V] float32."""


@torch.inference_mode()
def score(
    decoder: Decoder,
    cut: Sequence[Sequence[int]],
    firsts: Sequence[int],
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[float, int]:
    """Return the summed negative log-likelihood of the tokens that count, and how many they are.

    Overwrites the decoder's first slots, as many as the longest window has. `progress` hears of
    every window done.
    """
    total, count = 0.0, 0
    for index, (window, first) in enumerate(zip(cut, firsts, strict=True)):
        for start in range(0, len(window) - 1, CHUNK_ROWS):
            stop = min(start + CHUNK_ROWS, len(window) - 1)
            wanted = range(max(start, first - 1), stop)
            logits = decoder.forward(_chunk(window, start, stop, wanted)).cpu().double()
            if wanted:
                targets = torch.tensor(window[wanted.start + 1 : wanted.stop + 1])
                total -= float(logits.log_softmax(-1).gather(1, targets[:, None]).sum())
                count += len(wanted)
        progress(index + 1)
    return total, count


def _chunk(window: Sequence[int], start: int, stop: int, wanted: range) -> StepRows:
    """Return a window's rows `start` to `stop`, in the slots of the same numbers."""
    positions = torch.arange(start, stop)
    lower = torch.ones(len(positions), len(positions)).tril() > 0
    return StepRows(
        token_ids=torch.tensor(window[start:stop]),
        positions=positions,
        slots=positions,
        segments=(Segment(torch.arange(start), torch.where(lower, positions, -1)),),
        logit_rows=torch.arange(wanted.start - start, max(wanted.start, wanted.stop) - start),
    )
