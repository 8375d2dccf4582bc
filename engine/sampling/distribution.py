"""The processed distribution, and the draw from it.

Order: temperature, top-k, top-p, min-p; each filter sees what the one before it left. Ties are
always settled for the lowest id, and the cumulative sum runs in the order of ids, so that the same
logits and the same uniform give the same token everywhere.

Dims: V vocabulary, K candidates kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.requests import SamplingParams

_FIRST_LOOK = 256  # candidates sorted before the whole vocabulary is


class NothingToDraw(ArithmeticError):
    """Processors left no token with a positive probability, or made a logit NaN."""


class Distribution(NamedTuple):
    """What may be drawn. Weights are positive multiples of probabilities, not normalised."""

    ids: NDArray[np.int64]  # [K] ascending
    weights: NDArray[np.float64]  # [K]


def draw(logits: NDArray[np.float32], params: SamplingParams, uniform: float) -> int:
    """Return the token that one uniform in [0, 1) selects. Raises NothingToDraw."""
    if params.temperature == 0.0:
        top = int(np.argmax(logits))  # the first of equals
        if not np.isfinite(logits[top]):
            raise NothingToDraw("no token has a finite logit")
        return top
    if params.top_k is None and params.top_p == 1.0 and params.min_p == 0.0:
        weights = _weights(logits, params.temperature)
        index = _drawn(weights, uniform)
        # A token without weight adds nothing, so it is never the one that passes the target.
        return index if index < len(weights) else int(np.flatnonzero(weights)[-1])
    ids, weights = distribution(logits, params)
    return int(ids[min(_drawn(weights, uniform), len(ids) - 1)])


def distribution(logits: NDArray[np.float32], params: SamplingParams) -> Distribution:
    """Return the processed distribution of one row of logits [V], for a temperature above 0.

    Exponentials are float32, everything summed is float64. A logit of minus infinity forbids its
    token. Raises NothingToDraw.
    """
    weights = _weights(logits, params.temperature)
    ids = np.flatnonzero(weights)
    if params.top_k is not None and params.top_k < len(ids):
        ids = np.sort(_descending(weights, ids, params.top_k)[: params.top_k])
    if params.top_p < 1.0:
        ids = _nucleus(weights, ids, params.top_p)
    if params.min_p > 0.0:
        ids = ids[weights[ids] >= params.min_p]  # the largest weight is 1
    return Distribution(ids, weights[ids])


def _weights(logits: NDArray[np.float32], temperature: float) -> NDArray[np.float64]:
    """Return every token's weight, the heaviest one's being 1."""
    top = float(logits.max())
    if not np.isfinite(top):
        raise NothingToDraw("no token has a finite logit, or one is NaN")
    scaled = logits - np.float32(top)
    scaled *= np.float32(1.0 / temperature)
    np.exp(scaled, out=scaled)
    return scaled.astype(np.float64)


def _drawn(weights: NDArray[np.float64], uniform: float) -> int:
    """Return the first place whose cumulative weight exceeds the uniform's part of all of it.

    As many as there are weights where rounding lets none.
    """
    cumulative = np.cumsum(weights)
    return int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))


def _descending(
    weights: NDArray[np.float64], ids: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Return at least `count` of `ids`, heaviest first, ties by id: a prefix of the full order."""
    if count < len(ids):
        own = weights[ids]
        least = np.partition(own, len(own) - count)[len(own) - count]
        ids = ids[own >= least]
    return ids[np.lexsort((ids, -weights[ids]))]


def _nucleus(
    weights: NDArray[np.float64], ids: NDArray[np.int64], mass: float
) -> NDArray[np.int64]:
    target = mass * float(weights[ids].sum())
    count = _FIRST_LOOK
    while True:
        ordered = _descending(weights, ids, count)
        cumulative = np.cumsum(weights[ordered])
        if cumulative[-1] >= target or len(ordered) == len(ids):
            # The smallest prefix that reaches the mass, one token at least.
            return np.sort(ordered[: int(np.searchsorted(cumulative, target, side="left")) + 1])
        count *= 8
