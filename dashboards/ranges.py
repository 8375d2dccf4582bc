"""The days that a page looks at: half-open in time, inclusive as people say dates.

first            last
|----- day -----|----- day -----|
start_us                        end_us      (midnights of the tenant's time zone)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from zoneinfo import ZoneInfo

from metering.local_days import begin_us, day_of

DAYS_MAX = 366
DAYS_DEFAULT = 30


class InvalidRange(ValueError):
    """Dates that name no range of days; the message says why."""


@dataclass(frozen=True, slots=True)
class DateRange:
    """Whole days, `first` and `last` both included, in one time zone."""

    first: date
    last: date
    zone: ZoneInfo

    @property
    def start_us(self) -> int:
        """The first midnight, epoch microseconds."""
        return begin_us(self.first, self.zone)

    @property
    def end_us(self) -> int:
        """The midnight after the last day, epoch microseconds, exclusive."""
        return begin_us(self.last + timedelta(days=1), self.zone)

    def days(self) -> Iterator[date]:
        """Every day of the range, in order."""
        for offset in range((self.last - self.first).days + 1):
            yield self.first + timedelta(days=offset)

    def recent(self, days: int, now_us: int) -> DateRange:
        """The last `days` days up to today, in the same zone."""
        today = _today(self.zone, now_us)
        return DateRange(today - timedelta(days=days - 1), today, self.zone)


def parse_range(first: str | None, last: str | None, zone: ZoneInfo, now_us: int) -> DateRange:
    """Read a form's two dates (ISO); a missing one means up to today, or 30 days back.

    Raises InvalidRange for what is no date, runs backwards, or spans more than `DAYS_MAX` days.
    """
    last_day = _date(last) if last else _today(zone, now_us)
    first_day = _date(first) if first else last_day - timedelta(days=DAYS_DEFAULT - 1)
    if first_day > last_day:
        raise InvalidRange("The first day comes after the last day.")
    if (last_day - first_day).days >= DAYS_MAX:
        raise InvalidRange(f"A range spans at most {DAYS_MAX} days.")
    return DateRange(first_day, last_day, zone)


def _today(zone: ZoneInfo, now_us: int) -> date:
    return day_of(now_us, zone)


def _date(text: str) -> date:
    try:
        day = date.fromisoformat(text)
    except ValueError:
        raise InvalidRange(f"{text[:20]!r} is not a date like 2026-01-31.") from None
    if not 1971 <= day.year <= 9000:
        raise InvalidRange("Dates lie between the years 1971 and 9000.")
    return day
