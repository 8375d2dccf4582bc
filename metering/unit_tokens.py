"""Which unit each token belongs to: the one that holds its last byte."""

from __future__ import annotations

from bisect import bisect_left

from metering.calibration import Calibration
from metering.confidence import Score, tier
from metering.events import UnitSummary
from metering.semantic import Unit


class UnitTokens:
    """The tokens whose unit hasn't closed yet, in order, with running totals.

    The totals make the first open unit's score a look-up, however long it grows.
    """

    __slots__ = (
        "_calibration",
        "_chosen",
        "_forced",
        "_lows",
        "_misses",
        "_offsets",
        "_sums",
        "_unats",
    )

    def __init__(self, calibration: Calibration | None = None) -> None:
        self._calibration = calibration
        self._offsets: list[int] = []  # of the byte that decides
        self._unats: list[int | None] = []
        self._forced: list[bool] = []
        # Of all tokens up to this one, those that a grammar forced left out:
        self._chosen: list[int] = []  # how many
        self._sums: list[int] = []  # their joint
        self._lows: list[int] = []  # the least of them
        self._misses: list[int] = []  # how many of them have no log-probability

    def add(self, offset: int, unats: int | None, *, forced: bool) -> None:
        """Append a token that belongs to the unit holding the byte at `offset`.

        A forced one counts as a token of the unit, and not in its score.
        """
        chosen = self._chosen[-1] if self._chosen else 0
        total = self._sums[-1] if self._sums else 0
        low = self._lows[-1] if self._lows else 0
        misses = self._misses[-1] if self._misses else 0
        own = 0 if forced or unats is None else unats
        self._offsets.append(offset)
        self._unats.append(unats)
        self._forced.append(forced)
        self._chosen.append(chosen + (not forced))
        self._sums.append(total + own)
        self._lows.append(min(low, own))
        self._misses.append(misses + (unats is None and not forced))

    def close(self, index: int, unit: Unit) -> UnitSummary:
        """Take out the tokens of the next closed unit and summarise it."""
        count = bisect_left(self._offsets, unit.end)
        summary = self._summarise(index, unit, count, self._score(0, count))
        left = list(
            zip(self._offsets[count:], self._unats[count:], self._forced[count:], strict=True)
        )
        self._clear()
        for offset, value, forced in left:
            self.add(offset, value, forced=forced)
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
            summaries.append(self._summarise(index + len(summaries), unit, end - first, score))
            first = end
        return summaries

    def copy(self) -> UnitTokens:
        """An independent copy."""
        twin = UnitTokens(self._calibration)
        for name in self._lists():
            setattr(twin, name, getattr(self, name)[:])
        return twin

    @classmethod
    def _lists(cls) -> tuple[str, ...]:
        return cls.__slots__[1:]

    def _clear(self) -> None:
        for name in self._lists():
            getattr(self, name).clear()

    def _score(self, first: int, end: int) -> Score | None:
        """The score of those of the tokens `first:end` that were chosen.

        Null where there are none, or one has no log-probability.
        """
        if first == end:
            return None
        if first == 0:
            if self._misses[end - 1] or not self._chosen[end - 1]:
                return None
            return Score(self._chosen[end - 1], self._sums[end - 1], self._lows[end - 1])
        values = [
            unats
            for unats, forced in zip(self._unats[first:end], self._forced[first:end], strict=True)
            if not forced
        ]
        known = [value for value in values if value is not None]
        if not known or len(known) < len(values):
            return None
        return Score(len(known), sum(known), min(known))

    def _summarise(self, index: int, unit: Unit, tokens: int, score: Score | None) -> UnitSummary:
        geo_mean = None if score is None else score.geo_mean
        calibrated = None
        if geo_mean is not None and self._calibration is not None:
            calibrated = self._calibration.calibrated(unit.kind, geo_mean)
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
            tier=None if geo_mean is None else tier(calibrated or geo_mean),
            calibrated=calibrated,
        )
