"""What a step costs by its rows, learned from the steps themselves.

A step takes about `fixed + per_row * rows`. A drafted node is worth its row when the tokens it
may add outweigh, in proportion, the time it adds:

    probability / tokens expected of the step  >  per_row / (fixed + per_row * rows)

Only how many nodes are tried depends on this, never what is emitted.
"""

from __future__ import annotations

_FIXED_PER_ROW = 36.0  # a step without rows costs as much as this many: fp32 on two cores
_FORGET = 0.99  # weight of the past after one step
_PRIOR_STEPS = 50.0


class StepCost:
    """A straight line through (rows, time), fitted by least squares with a fading memory."""

    def __init__(self) -> None:
        # Weighted sums of 1, rows, rows squared, time, rows * time; empty before the first step.
        self._moments: list[float] = []
        self._fixed, self._per_row = _FIXED_PER_ROW, 1.0

    def observe(self, rows: int, time: float) -> None:
        """Learn from one step. Times may be in any unit, always the same."""
        if not self._moments:
            # Until enough is seen, a line of the prior's shape through the first step.
            unit = time / (_FIXED_PER_ROW + rows)
            self._moments = [0.0] * 5
            for prior_rows in (1.0, 64.0):
                self._add(prior_rows, unit * (_FIXED_PER_ROW + prior_rows), _PRIOR_STEPS / 2)
        self._moments = [_FORGET * moment for moment in self._moments]
        self._add(rows, time, 1.0)
        weight, r, rr, t, rt = self._moments
        spread = weight * rr - r * r
        if spread > 1e-6 * weight * rr:  # otherwise all steps were of one size: keep the slope
            mean = t / weight
            self._per_row = min(max((weight * rt - r * t) / spread, 1e-3 * mean), mean)
        self._fixed = max((t - self._per_row * r) / weight, 0.0)

    def least_probability(self, rows: int, tokens: float) -> float:
        """Return how likely a node must be, in a step of `rows` expected to emit `tokens`."""
        return tokens * self._per_row / (self._fixed + self._per_row * rows)

    def _add(self, rows: float, time: float, weight: float) -> None:
        terms = (1.0, rows, rows * rows, time, rows * time)
        self._moments = [
            moment + weight * term for moment, term in zip(self._moments, terms, strict=True)
        ]
