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
from engine.sampling.selection import largest

_FIRST_LOOK = 256  # candidates that top-p looks at before it looks at more
_STRETCH = 128  # weights summed as one before it is looked among them
_ROUNDING = 2.0**-53  # of one addition, at most, relative


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
        # A token without weight adds nothing, so it is never the one that passes the target.
        return _drawn(_weights(logits, params.temperature), uniform)
    ids, weights = distribution(logits, params)
    return int(ids[_drawn(weights, uniform)])


def distribution(logits: NDArray[np.float32], params: SamplingParams) -> Distribution:
    """Return the processed distribution of one row of logits [V], for a temperature above 0.

    Exponentials are float32, everything summed is float64. A logit of minus infinity forbids its
    token. Raises NothingToDraw.
    """
    weights = _weights(logits, params.temperature)
    ids = np.flatnonzero(weights > 0.0) if weights.min() == 0.0 else np.arange(len(weights))
    if len(ids) < len(weights):
        weights = weights[ids]
    if params.top_k is not None:
        kept = largest(weights, params.top_k)
        ids, weights = ids[kept], weights[kept]
    if params.top_p < 1.0:
        kept = _nucleus(weights, params.top_p)
        ids, weights = ids[kept], weights[kept]
    if params.min_p > 0.0:
        # The largest weight is 1. A bare float would be rounded to the weights' precision.
        kept = np.flatnonzero(weights >= np.float64(params.min_p))
        ids, weights = ids[kept], weights[kept]
    return Distribution(ids, weights.astype(np.float64))


def _weights(logits: NDArray[np.float32], temperature: float) -> NDArray[np.float32]:
    """Return every token's weight, the heaviest one's being 1."""
    top = float(logits.max())
    if not np.isfinite(top):
        raise NothingToDraw("no token has a finite logit, or one is NaN")
    scaled = logits - np.float32(top)
    scaled *= np.float32(1.0 / temperature)
    np.exp(scaled, out=scaled)
    return scaled


def _drawn(weights: NDArray[np.floating], uniform: float) -> int:
    """Return the first place whose cumulative weight exceeds the uniform's part of all of it.

    There is one: less than 1 times a sum is less than the sum, in doubles too.
    """
    place = _looked_up(weights, uniform) if len(weights) > _STRETCH else None
    if place is None:
        cumulative = np.cumsum(weights, dtype=np.float64)
        place = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return place


def _looked_up(weights: NDArray[np.floating], uniform: float) -> int | None:
    """Return that place from sums of stretches; null where other rounding could give another.

    Sums of n positive numbers, in whatever order, differ by less than 2n roundings of the whole,
    and so do the targets taken from them.
    """
    begins = np.arange(0, len(weights), _STRETCH)
    ends = np.cumsum(np.add.reduceat(weights, begins, dtype=np.float64))
    target = uniform * ends[-1]
    doubt = 8 * len(weights) * _ROUNDING * ends[-1]
    stretch = int(np.searchsorted(ends, target, side="right"))
    begin = stretch * _STRETCH
    cumulative = np.zeros(len(weights[begin : begin + _STRETCH]) + 1)
    np.cumsum(weights[begin : begin + _STRETCH], out=cumulative[1:])
    if stretch:
        cumulative += ends[stretch - 1]
    above = int(np.searchsorted(cumulative, target, side="right"))
    certain = (
        0 < above < len(cumulative)
        and cumulative[above] - target > doubt
        and target - cumulative[above - 1] > doubt
    )
    return begin + above - 1 if certain else None


def _nucleus(weights: NDArray[np.float32], mass: float) -> NDArray[np.int64]:
    """Return where the fewest weights lie that reach the mass, heaviest first, ascending."""
    target = mass * float(weights.astype(np.float64).sum())
    count = _FIRST_LOOK
    while True:
        places = largest(weights, count)
        own = weights[places]
        cumulative = np.cumsum(np.sort(own)[::-1], dtype=np.float64)
        if cumulative[-1] >= target or len(places) == len(weights):
            needed = int(np.searchsorted(cumulative, target, side="left")) + 1
            return places[largest(own, needed)]
        count *= 8
