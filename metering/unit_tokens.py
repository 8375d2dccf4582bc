"""Which unit each token belongs to: the one that holds its last byte."""

from __future__ import annotations

from bisect import bisect_left

from metering.confidence import Score, tier
from metering.events import UnitSummary
from metering.semantic import Unit


class UnitTokens:
    """The tokens whose unit hasn't closed yet, in order, with running totals.

    The totals make the first open unit's score a look-up, however long it grows.
    """

    __slots__ = ("_lows", "_misses", "_offsets", "_sums", "_unats")

    def __init__(self) -> None:
        self._offsets: list[int] = []  # of the byte that decides
        self._unats: list[int | None] = []
        self._sums: list[int] = []  # of all tokens up to this one
        self._lows: list[int] = []  # the least of them
        self._misses: list[int] = []  # how many of them have no log-probability

    def add(self, offset: int, unats: int | None) -> None:
        """Append a token that belongs to the unit holding the byte at `offset`."""
        total = self._sums[-1] if self._sums else 0
        low = self._lows[-1] if self._lows else 0
        misses = self._misses[-1] if self._misses else 0
        self._offsets.append(offset)
        self._unats.append(unats)
        self._sums.append(total + (unats or 0))
        self._lows.append(min(low, unats or 0))
        self._misses.append(misses + (unats is None))

    def close(self, index: int, unit: Unit) -> UnitSummary:
        """Take out the tokens of the next closed unit and summarise it."""
        count = bisect_left(self._offsets, unit.end)
        summary = _summarise(index, unit, count, self._score(0, count))
        left = list(zip(self._offsets[count:], self._unats[count:], strict=True))
        for values in (self._offsets, self._unats, self._sums, self._lows, self._misses):
            values.clear()
        for offset, value in left:
            self.add(offset, value)
        return summary

    def open_summaries(self, index: int, units: list[Unit]) -> list[UnitSummary]:
        """Summarise the units that are open, as if the text ended here. Changes nothing.

        Tokens behind the last byte go to the last unit: an EOS, an unfinished code point.
        """
        summaries: list[UnitSummary] = []
        first = 0
        for unit in units:
            is_last = unit is units[-1]
            end = len(self._offsets) if is_last else bisect_left(self._offsets, unit.end, first)
            score = self._score(first, end)
            summaries.append(_summarise(index + len(summaries), unit, end - first, score))
            first = end
        return summaries

    def copy(self) -> UnitTokens:
        """An independent copy."""
        twin = UnitTokens()
        twin._offsets, twin._unats = self._offsets[:], self._unats[:]
        twin._sums, twin._lows, twin._misses = self._sums[:], self._lows[:], self._misses[:]
        return twin

    def _score(self, first: int, end: int) -> Score | None:
        """The score of tokens `first:end`; null for none, or where one has no log-probability."""
        if first == end:
            return None
        if first == 0:
            if self._misses[end - 1]:
                return None
            return Score(end, self._sums[end - 1], self._lows[end - 1])
        values = self._unats[first:end]
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            return None
        return Score(len(known), sum(known), min(known))


def _summarise(index: int, unit: Unit, tokens: int, score: Score | None) -> UnitSummary:
    geo_mean = None if score is None else score.geo_mean
    return UnitSummary(
        index=index,
        kind=unit.kind,
        state=unit.state,
        byte_start=unit.start,
        byte_end=unit.end,
        tokens=tokens,
        sum_logprob=None if score is None else score.sum_logprob,
        geo_mean=geo_mean,
        min_prob=None if score is None else score.min_prob,
        tier=None if geo_mean is None else tier(geo_mean),
    )
