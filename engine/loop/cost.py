"""What a step costs by its rows, v(n), and how many candidates are worth verifying at that price.

The curve is measured when a model is opened (`engine.loop.profiling`) and bent to what steps then
take, the loop's own work included: contexts grow, machines get busy. Verifying the k likeliest
nodes in a step of n rows that emits t tokens anyway is worth

    (t + p1 + ... + pk) / v(n + k)    tokens per millisecond

and the best k is taken: many for a single request, few in a full batch, none where the next row
costs more than it may bring. What a step computes of prompts it computes anyway, and is left out of
the price: among their rows, others seem cheap, but they keep the prompts waiting. Only how many
nodes are tried depends on this, never what is emitted.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from engine.graph.tree import TokenTree
from engine.loop.asking import Asking

Curve = tuple[tuple[int, float], ...]  # (rows, milliseconds), both ascending, two points at least

UNMEASURED: Curve = ((1, 64.0), (64, 247.0))  # a small model in single precision on two cores
_FORGET = 0.99  # weight of the past after one step
_PRIOR_STEPS = 50.0
_BENT_MOST = 4.0  # how much steeper or flatter than measured a curve may become


class StepCost:
    """The curve, and a straight line from it to the times observed since.

    The line is fitted by least squares with a fading memory.
    """

    def __init__(self, curve: Curve = UNMEASURED) -> None:
        self.curve = curve
        self._values: list[float] = []  # the curve's, from 0 rows on, as far as they were asked for
        self._asking = Asking()
        self._scale, self._fixed = 1.0, 0.0
        # Weighted sums of 1, v, v squared, time, v * time; the curve's ends stand for the past.
        self._moments = [0.0] * 5
        for _, value in (curve[0], curve[-1]):
            self._add(value, value, _PRIOR_STEPS / 2)

    def observe(self, rows: int, time_ms: float) -> None:
        """Learn from one step."""
        self._moments = [_FORGET * moment for moment in self._moments]
        self._add(self._measured(rows, 1)[0], time_ms, 1.0)
        weight, v, vv, t, vt = self._moments
        spread = weight * vv - v * v
        if spread > 1e-6 * weight * vv:  # otherwise all steps were of one size: keep the slope
            slope = (weight * vt - v * t) / spread
            self._scale = min(max(slope, 1 / _BENT_MOST), _BENT_MOST)
        self._fixed = (t - self._scale * v) / weight

    def observe_asking(self, draws: int, plain_ms: float, spent_ms: float) -> None:
        """Learn from a step that asked for drafts: what it took, and would have taken without."""
        self._asking.take(draws, plain_ms, spent_ms)

    def worth_asking(self, draws: int) -> bool:
        """Whether a step that draws for so many requests should ask for drafts; counts the noes."""
        return self._asking.pays(draws)

    def time_ms(self, rows: int) -> float:
        """Return what a step of this many rows takes, as things are."""
        return self._times_ms(rows, 1)[0]

    def nodes_worth(self, rows: int, draws: int, probabilities: Sequence[float]) -> int:
        """Return how many nodes to add to a step of `rows` that draws `draws` tokens anyway.

        `probabilities` are the nodes', descending: the first ones are taken.
        """
        alone = self.time_ms(draws)
        first, *times = self._times_ms(rows, len(probabilities) + 1)
        best, tokens, best_rate = 0, float(draws), draws / alone
        for count, (probability, time) in enumerate(zip(probabilities, times, strict=True), 1):
            tokens += probability
            if tokens > best_rate * (alone + time - first):
                best, best_rate = count, tokens / (alone + time - first)
        return best

    def chosen_nodes(
        self, rows: int, draws: int, trees: Sequence[TokenTree], most: int
    ) -> Counter[int]:
        """Return how many nodes to verify of which tree, the roots not counted, `most` in all.

        A tree's nodes are in order of probability, so the likeliest of all trees are prefixes.
        """
        nodes = sorted(
            (-probability, index)
            for index, tree in enumerate(trees)
            for probability in tree.probabilities[1:]
        )[:most]
        worth = self.nodes_worth(rows, draws, [-probability for probability, _ in nodes])
        return Counter(index for _, index in nodes[:worth])

    def least_probability(self, rows: int, draws: int, most: int) -> float:
        """Return how likely a node must be to be worth one of the next `most` rows at all."""
        times = self._times_ms(rows, most + 1)
        cheapest = min(later - sooner for sooner, later in itertools.pairwise(times))
        return cheapest * draws / self.time_ms(draws)

    def _times_ms(self, rows: int, count: int) -> list[float]:
        """Return what steps of `rows` and of each of the next sizes take, `count` in all."""
        fixed, scale = self._fixed, self._scale
        return [max(fixed + scale * value, 1e-3) for value in self._measured(rows, count)]

    def _measured(self, rows: int, count: int) -> list[float]:
        """Return the curve's values, on straight lines between its points and beyond the last."""
        curve, values = self.curve, self._values
        for size in range(len(values), rows + count):
            at = min(max(bisect_left(curve, (size, 0.0)), 1), len(curve) - 1)
            (left, low), (right, high) = curve[at - 1], curve[at]
            values.append(low + (high - low) * (size - left) / (right - left))
        return values[rows : rows + count]

    def _add(self, value: float, time: float, weight: float) -> None:
        terms = (1.0, value, value * value, time, value * time)
        self._moments = [
            moment + weight * term for moment, term in zip(self._moments, terms, strict=True)
        ]
