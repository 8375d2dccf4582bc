"""Experts at hand: those of a mixture that are kept prepared; the others are read where needed.

How much an expert is wanted is one number: the rows that chose it, each counting half as much for
every `HALF_LIFE` steps since (LRFU, Lee et al. 2001). So what was used last is preferred to what
was used as often before, and what is always used to what was used once. Its logarithm, counted
from the first step, changes only when the expert is used. A rejected draft takes nothing back: the
experts of its step stay the most recent, and the next step finds them.

Torch-free. Dims: L layers, E experts of each, N experts used by a layer's step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.records import ExpertCounters

T = TypeVar("T")
Counts = NDArray[np.int64]

HALF_LIFE = 64  # steps


class ExpertCache(Generic[T]):
    """Keeps at most `size` experts of all layers together. Not thread-safe."""

    def __init__(
        self,
        prepare: Callable[[int, int], T],
        layers: int,
        experts: int,
        *,
        size: int = 0,
        heat: Counts | None = None,
        expect: Callable[[int, int], None] = lambda _layer, _expert: None,
    ) -> None:
        """Prepare the `size` hottest by a profile's counts `heat` [L, E]; 0 keeps them all.

        Without a profile all are alike, and every layer gets its share. `expect` hears of an
        expert that will be prepared soon.
        """
        self.size = min(size or layers * experts, layers * experts)
        self._prepare = prepare
        self._expect = expect
        self._prior = _as_if_chosen(np.zeros((layers, experts)) if heat is None else heat)
        self._kept: dict[tuple[int, int], T] = {}
        self.forget()
        # experts before layers: among equals, layers take turns
        coldest_last = np.argsort(-self._prior.T, axis=None, kind="stable")[: self.size].tolist()
        for expert, layer in (divmod(place, layers) for place in coldest_last):
            self._kept[layer, expert] = prepare(layer, expert)

    def forget(self) -> None:
        """Count from here: what was used so far, in trying the model out, says nothing."""
        self.chosen: Counts = np.zeros(self._prior.shape, dtype=np.int64)  # by how many rows
        self._wanted = self._prior.copy()  # its logarithm, to base 2
        self._steps = [0] * len(self._prior)
        self._lookups = self._hits = self._evictions = 0

    @property
    def counters(self) -> ExpertCounters:
        """What was looked up so far: a lookup is an expert that a step uses in one layer."""
        return ExpertCounters(len(self._kept), self._lookups, self._hits, self._evictions)

    def foresee(self, layer: int, experts: Counts) -> None:
        """Have those read that are not at hand; a step is going to take them from this layer."""
        for expert in experts.tolist():
            if (layer, expert) not in self._kept:
                self._expect(layer, expert)

    def take(self, layer: int, experts: Counts, rows: Counts) -> Iterator[T]:
        """Begin a layer's step: yield its distinct `experts` [N], prepared, in their order.

        `rows` [N] is how many rows of the step chose each.
        """
        now = self._steps[layer] / HALF_LIFE
        self._steps[layer] += 1
        self.chosen[layer, experts] += rows
        self._wanted[layer, experts] = np.logaddexp2(
            self._wanted[layer, experts], now + np.log2(rows)
        )
        self.foresee(layer, experts)
        # in hand before any is let go to make room for another
        found = [self._kept.get((layer, expert)) for expert in experts.tolist()]
        self._lookups += len(found)
        self._hits += sum(one is not None for one in found)
        for expert, one in zip(experts.tolist(), found, strict=True):
            if one is not None:
                yield one
            else:
                yield self._keep(layer, expert, self._prepare(layer, expert))

    def _keep(self, layer: int, expert: int, prepared: T) -> T:
        """Keep one more, unless all that are kept are wanted more; return it."""
        if len(self._kept) >= self.size:
            coldest = min(self._kept, key=self._wanted.item)
            if self._wanted[coldest] >= self._wanted[layer, expert]:
                return prepared
            del self._kept[coldest]
            self._evictions += 1
        self._kept[layer, expert] = prepared
        return prepared


def _as_if_chosen(heat: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return a profile [L, E] as if each layer had made so many choices within a half-life."""
    counts = heat.astype(np.float64)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1.0)
    with np.errstate(divide="ignore"):
        result: NDArray[np.float64] = np.log2(shares * (HALF_LIFE / math.log(2)))
    return result
