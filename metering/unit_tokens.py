"""Which unit each token belongs to: the one that holds its last byte."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from metering.calibration import Calibration
from metering.confidence import Score, tier
from metering.events import UnitSummary
from metering.semantic import Unit

FORCED = 1  # in place of a log-probability, which is never above zero


class UnitTokens:
    """The tokens whose unit hasn't closed yet, in order. They count in it, the forced ones too."""

    __slots__ = ("_calibration", "_offsets", "_unats")

    def __init__(self, calibration: Calibration | None = None) -> None:
        self._calibration = calibration
        self._offsets: list[int] = []  # of the byte that decides
        self._unats: list[int | None] = []

    def add(self, offsets: Sequence[int], unats: Sequence[int | None]) -> None:
        """Append tokens, each belonging to the unit that holds the byte at its offset."""
        self._offsets += offsets
        self._unats += unats

    def close(self, index: int, unit: Unit) -> UnitSummary:
        """Take out the tokens of the next closed unit and summarise it."""
        count = bisect_left(self._offsets, unit.end)
        summary = self._summarise(index, unit, count, score_of(self._unats[:count]))
        del self._offsets[:count], self._unats[:count]
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
            scored = score_of(self._unats[first:end])
            summaries.append(self._summarise(index + len(summaries), unit, end - first, scored))
            first = end
        return summaries

    def copy(self) -> UnitTokens:
        """An independent copy; costs as much as the open text is long."""
        twin = UnitTokens.__new__(UnitTokens)
        twin._calibration = self._calibration
        twin._offsets, twin._unats = self._offsets[:], self._unats[:]
        return twin

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


def score_of(unats: Sequence[int | None]) -> Score | None:
    """The score of those of these tokens that are not FORCED.

    Null where there are none, or one has no log-probability.
    """
    known = [value for value in unats if value is not None and value != FORCED]
    if not known or None in unats:
        return None
    return Score(len(known), sum(known), min(known))
