"""The windows of a budget: half-open, in the tenant's time zone. Pure.

A day begins at local midnight, whatever the clocks do that night, a week on Monday, a month on its
first. One window's end is the next one's start, so no moment is in two, or in none: also where a
tenant moves to another time zone, for a window that has counted something keeps its bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo

from metering.local_days import begin_us, day_of


class Period(StrEnum):
    """How long a window is."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    EVER = "ever"


@dataclass(frozen=True, slots=True)
class Window:
    """[start_us, end_us), in epoch microseconds; a null end never comes."""

    start_us: int
    end_us: int | None

    def __contains__(self, at_us: int) -> bool:
        return self.start_us <= at_us and (self.end_us is None or at_us < self.end_us)


def window_of(period: Period, at_us: int, zone: ZoneInfo) -> Window:
    """The window that holds a moment."""
    return Window(0, None) if period is Period.EVER else Window(*_bounds(period, at_us, zone))


def window_beside(
    period: Period, at_us: int, zone: ZoneInfo, *, ended_us: int | None, next_us: int | None
) -> Window:
    """The window that holds a moment, between windows that were counted in, maybe by other clocks.

    The last one before it ended at `ended_us`, the first one after it begins at `next_us`. What the
    last one leaves of a window is one itself if it is half of it at least. Less joins the next one:
    each move would let a whole limit through within hours.
    """
    if period is Period.EVER:
        return window_of(period, at_us, zone)
    start_us, end_us = _bounds(period, at_us, zone)
    if ended_us is not None and ended_us > start_us:
        if 2 * (end_us - ended_us) < end_us - start_us:
            _, end_us = _bounds(period, end_us, zone)
        start_us = ended_us
    if next_us is not None:
        end_us = min(end_us, next_us)
    return Window(start_us, end_us)


def _bounds(period: Period, at_us: int, zone: ZoneInfo) -> tuple[int, int]:
    day = day_of(at_us, zone)
    if period is Period.DAY:
        first, following = day, day + timedelta(days=1)
    elif period is Period.WEEK:
        first = day - timedelta(days=day.weekday())
        following = first + timedelta(days=7)
    else:
        first = day.replace(day=1)
        following = (first + timedelta(days=31)).replace(day=1)
    return begin_us(first, zone), begin_us(following, zone)
