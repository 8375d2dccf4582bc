"""Days of a zone: they meet without gap or overlap, whatever its clocks do."""

from __future__ import annotations

from datetime import date
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metering.local_days import begin_us, day_of, runs, spans

ZONES = [
    ZoneInfo(name)
    for name in (
        "UTC",
        "Europe/Berlin",
        "America/Sao_Paulo",  # midnight itself was skipped
        "America/Havana",  # midnight came twice
        "Asia/Kathmandu",
        "Australia/Lord_Howe",  # half an hour
        "Pacific/Apia",  # a day was skipped
    )
]
HOUR_US = 3600 * 10**6
instants = st.integers(0, 2_000_000_000 * 10**6)


@given(instants, st.integers(0, 200 * HOUR_US), st.sampled_from(ZONES))
def test_the_days_of_a_span_are_that_span(start_us: int, length_us: int, zone: ZoneInfo) -> None:
    found = [each for each in spans(start_us, start_us + length_us, zone) if each[1] < each[2]]
    at = start_us
    for day, from_us, to_us in found:
        assert from_us == at
        assert day_of(from_us, zone) == day_of(to_us - 1, zone) == day
        at = to_us
    assert at == start_us + length_us


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", date(2026, 3, 29), 23),
        ("Europe/Berlin", date(2026, 10, 25), 25),
        ("America/Sao_Paulo", date(2018, 11, 4), 23),
        ("UTC", date(2026, 3, 29), 24),
    ],
)
def test_a_day_is_as_long_as_its_clocks_make_it(zone: str, day: date, hours: int) -> None:
    there = ZoneInfo(zone)
    following = date.fromordinal(day.toordinal() + 1)
    assert begin_us(following, there) - begin_us(day, there) == hours * HOUR_US


@given(instants, st.integers(0, 200 * HOUR_US), st.sampled_from(ZONES), st.data())
def test_a_moment_lies_in_one_run_and_there_in_its_day(
    start_us: int, length_us: int, zone: ZoneInfo, data: st.DataObject
) -> None:
    found = runs(spans(start_us, start_us + length_us, zone), zone)
    assert len(found) <= 5, "clocks change now and then"
    assert sum(run.until_us - run.from_us for run in found) == length_us
    if length_us:
        at_us = data.draw(st.integers(start_us, start_us + length_us - 1))
        [run] = [run for run in found if run.from_us <= at_us < run.until_us]
        place = (at_us - run.begin_us) // run.length_us
        assert run.day(place) == day_of(at_us, zone)
