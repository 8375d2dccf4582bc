"""Billing periods: calendar months of a tenant's time zone, half-open, to the microsecond.

start_us                         end_us
[---------- 2026-11 ------------)[---------- 2026-12 ---

A month is as long as the clocks of its zone make it: an hour longer or shorter where they change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from billing.errors import InvalidPeriod

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
    return Period(label, _begin_us(first, zone), _begin_us(_following(first), zone), time_zone)


def containing(at_us: int, time_zone: str) -> Period:
    """The month in which an instant lies."""
    local = datetime.fromtimestamp(at_us // 10**6, UTC).astimezone(ZoneInfo(time_zone))
    return month(f"{local.year:04d}-{local.month:02d}", time_zone)


def days(period: Period) -> Iterator[tuple[int, int]]:
    """The local days of a period as [start, end), the first and last cut to it."""
    zone = ZoneInfo(period.time_zone)
    start_us = period.start_us
    day = datetime.fromtimestamp(start_us // 10**6, UTC).astimezone(zone).date()
    while start_us < period.end_us:
        day += timedelta(days=1)
        end_us = min(_begin_us(day, zone), period.end_us)
        if end_us > start_us:
            yield start_us, end_us
            start_us = end_us


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


def _begin_us(first: date, zone: ZoneInfo) -> int:
    """The instant at which a day begins.

    Where midnight is skipped, reading it by the offset before the change gives the change itself.
    Where it comes twice, the first counts, unless the clock then still falls back into the day
    before.
    """
    midnight = datetime.combine(first, time.min, zone)
    at = int(midnight.timestamp())
    if datetime.fromtimestamp(at, UTC).astimezone(zone).date() < first:
        at = int(midnight.replace(fold=1).timestamp())
    return at * 10**6
