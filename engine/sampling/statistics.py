"""What the raw verifier thought of a token: log-probability and entropy, in nats.

Taken from the logits as the model gave them, before temperature, filters and processors.
Dims: V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class NonFiniteLogits(ArithmeticError):
    """The model gave a NaN or an infinite logit: nothing can be drawn or scored."""


class RawStatistics(NamedTuple):
    """Of one token, under the distribution it was drawn from."""

    logprob: float
    entropy: float


def top_logprobs(
    logits: NDArray[np.float32], count: int, token: int, logprob: float
) -> tuple[tuple[int, float], ...]:
    """Return the `count` likeliest tokens and their log-probabilities, ties to the lowest id.

    Measured from `token`, whose log-probability is known: nothing is summed again.
    """
    if not count:
        return ()
    least = np.partition(logits, len(logits) - count)[len(logits) - count]
    ids = np.flatnonzero(logits >= least)
    ids = ids[np.lexsort((ids, -logits[ids]))][:count]
    distances = logits[ids].astype(np.float64) - float(logits[token])
    return tuple(
        (int(index), min(logprob + float(distance), 0.0))
        for index, distance in zip(ids, distances, strict=True)
    )


def raw_statistics(logits: NDArray[np.float32], token: int) -> RawStatistics:
    """Score `token` under one row of raw logits [V] float32.

    Exponentials are float32, sums float64. Raises NonFiniteLogits.
    """
    top = logits.max()
    if not np.isfinite(top):
        raise NonFiniteLogits("the model gave non-finite logits")
    shifted = logits - top
    weights = np.exp(shifted)
    total = float(weights.sum(dtype=np.float64))
    log_total = float(np.log(total))
    mean = float((weights * shifted).sum(dtype=np.float64)) / total
    return RawStatistics(
        logprob=min(float(shifted[token]) - log_total, 0.0),
        # Rounding may leave a certain token an entropy of -1e-17.
        entropy=max(log_total - mean, 0.0),
    )
