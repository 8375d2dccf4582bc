"""How good probabilities are, on weighted outcomes: Brier, ECE, AUROC and coverage. Pure.

`B` labels: `said` is what was predicted, `right` 0 or 1, `weight` how many texts each stands for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metering.calibration.reports import Bin, Figures

Array = NDArray[np.float64]
BINS = 10


def figures(said: Array, right: Array, weight: Array, review_below: float) -> Figures:
    """Every figure of one set of predictions, `[B]` each."""
    found = bins(said, right, weight)
    return Figures(
        brier=float(np.average((said - right) ** 2, weights=weight)),
        ece=sum(each.share * abs(each.said - each.right) for each in found),
        auroc=auroc(said, right, weight),
        coverage=float(np.average(said >= review_below, weights=weight)),
        bins=found,
    )


def bins(said: Array, right: Array, weight: Array) -> tuple[Bin, ...]:
    """At most `BINS` bins of about equal weight; equal predictions are never parted."""
    order = np.argsort(said, kind="stable")
    said, right, weight = said[order], right[order], weight[order]
    middle = (np.cumsum(weight) - weight / 2) / weight.sum()
    wanted = np.minimum((middle * BINS).astype(int), BINS - 1)
    _, first, inverse = np.unique(said, return_index=True, return_inverse=True)
    part = wanted[first][inverse]  # of the first of its equals
    found = []
    for number in np.unique(part):
        own = part == number
        found.append(
            Bin(
                said=float(np.average(said[own], weights=weight[own])),
                right=float(np.average(right[own], weights=weight[own])),
                labels=int(own.sum()),
                share=float(weight[own].sum() / weight.sum()),
            )
        )
    return tuple(found)


def auroc(said: Array, right: Array, weight: Array) -> float | None:
    """How likely a right text is to have the higher prediction; ties count half."""
    positive, negative = weight * right, weight * (1 - right)
    if not positive.sum() or not negative.sum():
        return None
    values, inverse = np.unique(said, return_inverse=True)
    ups = np.bincount(inverse, weights=positive, minlength=len(values))
    downs = np.bincount(inverse, weights=negative, minlength=len(values))
    below = np.cumsum(downs) - downs
    return float((ups * (below + downs / 2)).sum() / (positive.sum() * negative.sum()))


def column(values: Sequence[float]) -> Array:
    """A sequence as an array, `[B] float64`."""
    return np.asarray(values, dtype=np.float64)
