"""The windows of a budget: half-open, in the tenant's time zone. Pure.

A day begins at local midnight, whatever the clocks do that night, a week on Monday, a month on its
first. One window's end is the next one's start, so no moment is in two, or in none.
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


def window_of(period: Period, at_us: int, zone: ZoneInfo) -> Window:
    """The window that holds a moment."""
    if period is Period.EVER:
        return Window(0, None)
    day = day_of(at_us, zone)
    if period is Period.DAY:
        first, following = day, day + timedelta(days=1)
    elif period is Period.WEEK:
        first = day - timedelta(days=day.weekday())
        following = first + timedelta(days=7)
    else:
        first = day.replace(day=1)
        following = (first + timedelta(days=31)).replace(day=1)
    return Window(begin_us(first, zone), begin_us(following, zone))
