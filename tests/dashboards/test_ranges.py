"""Ranges of days: half-open in time, in the tenant's own midnights."""

from __future__ import annotations

from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.ranges import DAYS_MAX, DateRange, InvalidRange, parse_range
from metering.local_days import day_of

BERLIN = ZoneInfo("Europe/Berlin")
UTC_ZONE = ZoneInfo("UTC")
HOUR_US = 3_600_000_000


def micros(*when: int) -> int:
    return int(datetime(*when, tzinfo=UTC).timestamp()) * 1_000_000  # type: ignore[misc, arg-type]


NOW = micros(2026, 3, 10, 23, 30)


def test_a_range_without_dates_is_the_last_thirty_days_of_the_tenants_calendar() -> None:
    assert parse_range(None, "", UTC_ZONE, NOW) == DateRange(
        date(2026, 2, 9), date(2026, 3, 10), UTC_ZONE
    )
    assert parse_range(None, None, BERLIN, NOW).last == date(2026, 3, 11)


def test_a_day_on_which_clocks_go_forward_has_twenty_three_hours() -> None:
    day = DateRange(date(2026, 3, 29), date(2026, 3, 29), BERLIN)
    assert day.end_us - day.start_us == 23 * HOUR_US
    assert day.start_us == micros(2026, 3, 28, 23)


def test_presets_end_today() -> None:
    week = DateRange(date(2020, 1, 1), date(2020, 1, 2), UTC_ZONE).recent(7, NOW)
    assert (week.first, week.last) == (date(2026, 3, 4), date(2026, 3, 10))


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("2026-03-02", "2026-03-01"),
        ("2024-01-01", "2026-01-01"),
        ("yesterday", "2026-01-01"),
        ("2026-01-01", "2026-02-30"),
        ("0001-01-01", "0001-01-02"),
        ("9999-12-31", "9999-12-31"),
    ],
)
def test_dates_that_name_no_range_are_refused(first: str, last: str) -> None:
    with pytest.raises(InvalidRange):
        parse_range(first, last, UTC_ZONE, NOW)


@given(
    first=st.dates(date(2000, 1, 1), date(2037, 1, 1)),
    length=st.integers(0, DAYS_MAX - 1),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/Santiago", "Asia/Kathmandu"]),
    moment=st.floats(0, 1, exclude_max=True),
)
def test_every_moment_of_a_range_falls_on_one_of_its_days(
    first: date, length: int, zone: str, moment: float
) -> None:
    days = DateRange(first, date.fromordinal(first.toordinal() + length), ZoneInfo(zone))
    at_us = days.start_us + int((days.end_us - days.start_us) * moment)
    assert day_of(at_us, days.zone) in set(days.days())
    assert day_of(days.start_us - 1_000_000, days.zone) < days.first
    assert day_of(days.end_us, days.zone) > days.last
