"""Billing periods: calendar months of a tenant's time zone, half-open, to the microsecond.

start_us                         end_us
[---------- 2026-11 ------------)[---------- 2026-12 ---

A month is as long as the clocks of its zone make it: an hour longer or shorter where they change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from zoneinfo import ZoneInfo

from billing.errors import InvalidPeriod
from metering.local_days import begin_us, day_of, spans

_LABEL = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")
YEARS = range(1971, 9000)


@dataclass(frozen=True, slots=True)
class Period:
    """One month: every instant of [start_us, end_us)."""

    label: str  # "2026-11"
    start_us: int
    end_us: int
    time_zone: str

    def __contains__(self, at_us: int) -> bool:
        return self.start_us <= at_us < self.end_us


def month(label: str, time_zone: str) -> Period:
    """The month of this label, such as "2026-11"; raises InvalidPeriod for any other text."""
    first = _first(label)
    zone = ZoneInfo(time_zone)
    return Period(label, begin_us(first, zone), begin_us(_following(first), zone), time_zone)


def containing(at_us: int, time_zone: str) -> Period:
    """The month in which an instant lies."""
    return month(f"{day_of(at_us, ZoneInfo(time_zone)):%Y-%m}", time_zone)


def days(period: Period) -> Iterator[tuple[int, int]]:
    """The local days of a period as [start, end), the first and last cut to it."""
    for _, start_us, end_us in spans(period.start_us, period.end_us, ZoneInfo(period.time_zone)):
        if start_us < end_us:  # a zone that changed sides of the date line skipped a day
            yield start_us, end_us


def following(label: str) -> str:
    """The label of the month after."""
    return f"{_following(_first(label)):%Y-%m}"


def preceding(label: str) -> str:
    """The label of the month before."""
    first = _first(label)
    if first.month == 1:
        return f"{first.year - 1:04d}-12"
    return f"{first.year:04d}-{first.month - 1:02d}"


def _first(label: str) -> date:
    found = _LABEL.fullmatch(label)
    if found is None or int(found[1]) not in YEARS:
        raise InvalidPeriod(f"a period is a month such as 2026-11, not {label[:20]!r}")
    return date(int(found[1]), int(found[2]), 1)


def _following(first: date) -> date:
    return date(first.year + first.month // 12, first.month % 12 + 1, 1)
