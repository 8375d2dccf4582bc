"""What the raw verifier thought at each row: its best token, log-sum-exp and entropy.

Taken from the logits as the model gave them, before temperature, filters and processors. In numpy,
one row at a time, so that a row's result depends on nothing but the row; the block kernels have
their own, see `engine.kernels.cpu`.

Dims: Q rows of logits, V vocabulary.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class NonFiniteLogits(ArithmeticError):
    """The model gave a NaN or an infinite logit: nothing can be drawn or scored."""


class RawStatistics(NamedTuple):
    """Of one row."""

    top: int  # the largest logit's token, the lowest id of equals
    log_sum_exp: float  # what turns a logit into a log-probability, nats
    entropy: float  # nats

    def logprob(self, logit: float) -> float:
        """Return a token's log-probability. Raises NonFiniteLogits."""
        # an entropy is finite exactly where every logit is
        if not (math.isfinite(self.log_sum_exp) and math.isfinite(self.entropy)):
            raise NonFiniteLogits("the model gave non-finite logits")
        return min(logit - self.log_sum_exp, 0.0)


def raw_statistics(logits: NDArray[np.float32]) -> list[RawStatistics]:
    """Summarise each row of raw logits [Q, V] float32.

    Exponentials are float32, sums float64.
    """
    return [_of_row(row) for row in logits]


def _of_row(row: NDArray[np.float32]) -> RawStatistics:
    top = int(np.argmax(row))
    with np.errstate(invalid="ignore"):
        shifted = row - row[top]
        weights = np.exp(shifted)
        total = float(weights.sum(dtype=np.float64))
        mean = float((weights * shifted).sum(dtype=np.float64)) / total
    log_total = math.log(total) if total > 0.0 else math.nan
    return RawStatistics(top, float(row[top]) + log_total, max(log_total - mean, 0.0))
