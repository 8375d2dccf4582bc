"""The largest few of many values, without sorting the many.

Dims: V values, K of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_STRIDE = 16  # values of which only the largest is looked at first


def largest(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Return where the `count` largest values [V] are, ascending, of equals the first.

    Everything where there are no more. No value may be NaN.
    """
    if count >= len(values):
        return np.arange(len(values))
    columns = len(values) // _STRIDE
    places, own = None, values
    if count <= columns:
        # So many columns reach this, each by a value of its own.
        maxima = values[: _STRIDE * columns].reshape(_STRIDE, columns).max(axis=0)
        places = np.flatnonzero(values >= _kth(maxima, count))
        own = values[places]
    least = _kth(own, count)
    kept = own > least
    equals = np.flatnonzero(own == least)
    kept[equals[: count - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept) if places is None else places[kept]


def _kth(values: NDArray[np.float32], count: int) -> np.float32:
    """Return the smallest of the `count` largest."""
    place = len(values) - count
    least: np.float32 = np.partition(values, place)[place]
    return least
