"""Penalties for what was said already, and biases: both change logits, before any filter.

Repetition as in `transformers` (Keskar et al., "CTRL", 2019): a token of the prompt or the output
has its logit divided by the penalty if positive, multiplied if negative. Frequency, presence and
bias as OpenAI defines them; for these only the output counts.

Dims: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from engine.requests import SamplingParams


def penalises(params: SamplingParams) -> bool:
    """Whether these parameters change any logit."""
    return (
        params.repetition_penalty != 1.0
        or params.frequency_penalty != 0.0
        or params.presence_penalty != 0.0
        or bool(params.logit_bias)
    )


class Penalties:
    """What one sequence has said, and what that does to its next row of logits."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self._repetition = np.float32(params.repetition_penalty)
        self._frequency = np.float32(params.frequency_penalty)
        self._presence = np.float32(params.presence_penalty)
        self._bias_ids = np.array([token for token, _ in params.logit_bias], np.int64)
        self._biases = np.array([bias for _, bias in params.logit_bias], np.float32)
        self._seen = np.zeros(vocab_size, np.bool_)  # in the prompt or the output
        self._seen[np.array(prompt_ids, np.int64)] = True
        self._counts = np.zeros(vocab_size, np.float32)  # in the output

    def applied(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return a changed copy of one row [V]."""
        row = logits.copy()
        if self._repetition != 1.0:
            ids = np.flatnonzero(self._seen)
            own = row[ids]
            row[ids] = np.where(own < 0.0, own * self._repetition, own / self._repetition)
        if self._frequency != 0.0 or self._presence != 0.0:
            ids = np.flatnonzero(self._counts > 0.0)  # of bools: eight times as fast
            row[ids] -= self._frequency * self._counts[ids] + self._presence
        row[self._bias_ids] += self._biases
        return row

    def take(self, token: int) -> None:
        """Count a token of the output."""
        self._seen[token] = True
        self._counts[token] += 1.0
