"""Months of a time zone: half-open, without gap or overlap, whatever the clocks do."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing import periods
from billing.errors import InvalidPeriod

HOUR_US = 3600 * 10**6
# Clocks that change at odd hours, by odd amounts, over midnight, or not at all.
ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Asuncion",
    "America/Havana",
    "America/Sao_Paulo",
    "America/Scoresbysund",
    "Asia/Beirut",
    "Asia/Tehran",
    "Atlantic/Azores",
    "Africa/Cairo",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Pacific/Kiritimati",
    "Asia/Kathmandu",
)
zones = st.sampled_from(ZONES)
labels = st.builds("{:04d}-{:02d}".format, st.integers(1975, 2060), st.integers(1, 12))


@given(labels, zones)
def test_a_month_ends_where_the_next_begins_so_no_instant_is_billed_twice_or_never(
    label: str, zone: str
) -> None:
    month = periods.month(label, zone)
    assert month.end_us == periods.month(periods.following(label), zone).start_us
    assert periods.preceding(periods.following(label)) == label
    assert 28 * 24 - 1 <= (month.end_us - month.start_us) / HOUR_US <= 31 * 24 + 1


@given(labels, zones)
def test_the_last_day_belongs_to_its_month_to_the_microsecond(label: str, zone: str) -> None:
    month = periods.month(label, zone)
    for at_us, expected in (
        (month.start_us, label),
        (month.end_us - 1, label),
        (month.start_us - 1, periods.preceding(label)),
        (month.end_us, periods.following(label)),
    ):
        assert periods.containing(at_us, zone).label == expected
        assert (at_us in month) is (expected == label)


@given(st.integers(170_000_000, 2_800_000_000), zones)
def test_every_instant_lies_in_the_month_that_the_clock_on_the_wall_shows(
    at_s: int, zone: str
) -> None:
    month = periods.containing(at_s * 10**6, zone)
    wall = datetime.fromtimestamp(at_s, UTC).astimezone(ZoneInfo(zone))
    assert at_s * 10**6 in month
    assert month.label == f"{wall:%Y-%m}"


@pytest.mark.parametrize(
    ("label", "zone", "hours"),
    [
        ("2026-10", "Europe/Berlin", 31 * 24 + 1),
        ("2026-03", "Europe/Berlin", 31 * 24 - 1),
        ("2026-11", "America/New_York", 30 * 24 + 1),
        ("2026-11", "UTC", 30 * 24),
    ],
)
def test_a_month_is_as_long_as_its_clocks_make_it(label: str, zone: str, hours: int) -> None:
    month = periods.month(label, zone)
    assert month.end_us - month.start_us == hours * HOUR_US


def test_where_midnight_is_skipped_the_month_begins_with_the_change() -> None:
    # Paraguay's clocks went from 2017-09-30 24:00 straight to 01:00.
    begins = datetime.fromtimestamp(
        periods.month("2017-10", "America/Asuncion").start_us / 10**6, UTC
    )
    assert begins == datetime(2017, 10, 1, 4, tzinfo=UTC)


@pytest.mark.parametrize("text", ["", "2026", "2026-13", "2026-1", "2026-00", "26-01", "9999-01"])
def test_other_texts_are_no_periods(text: str) -> None:
    with pytest.raises(InvalidPeriod):
        periods.month(text, "UTC")
