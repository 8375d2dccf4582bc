from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from api_cases import NOW_US, HeldClock

from api.errors import InvalidParameter
from api.schemas import to_time, to_us
from api.usage import ranges
from api.usage.ranges import BUCKETS_MAX, Range
from metering.queries import Bucket

DAY_US = 86_400_000_000
NOW = to_time(NOW_US)


def test_without_bounds_it_is_the_last_thirty_days(held_clock: HeldClock) -> None:
    assert ranges.read(None, None, Bucket.DAY) == Range(NOW_US - 30 * DAY_US, NOW_US)
    assert ranges.read(None, None, Bucket.HOUR) == Range(NOW_US - 30 * DAY_US, NOW_US)


def test_without_a_start_minutes_go_back_as_far_as_they_may(held_clock: HeldClock) -> None:
    got = ranges.read(None, None, Bucket.MINUTE)
    assert got.end_us - got.start_us == BUCKETS_MAX * 60_000_000


def test_an_offset_is_honoured_to_the_microsecond(held_clock: HeldClock) -> None:
    start = datetime(2026, 11, 1, 2, 0, 0, 1, tzinfo=timezone(timedelta(hours=2)))
    got = ranges.read(start.isoformat(), NOW.isoformat(), Bucket.DAY)
    assert to_time(got.start_us) == datetime(2026, 11, 1, 0, 0, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "end", "bucket", "parameter"),
    [
        (NOW, NOW, Bucket.DAY, "start"),
        (NOW, NOW - timedelta(seconds=1), Bucket.DAY, "start"),
        (NOW.replace(tzinfo=None), None, Bucket.DAY, "start"),
        (None, NOW.replace(tzinfo=None), Bucket.DAY, "end"),
        (NOW - timedelta(days=2), NOW, Bucket.MINUTE, "bucket"),
        (
            datetime(1970, 1, 1, tzinfo=UTC),
            datetime(8999, 12, 31, tzinfo=UTC),
            Bucket.DAY,
            "bucket",
        ),
        (datetime(1, 1, 1, tzinfo=UTC), NOW, Bucket.DAY, "start"),
        (None, datetime(1, 1, 1, tzinfo=UTC), Bucket.DAY, "end"),
    ],
)
def test_a_range_that_is_empty_vague_or_too_fine_is_refused(
    held_clock: HeldClock,
    start: datetime | None,
    end: datetime | None,
    bucket: Bucket,
    parameter: str,
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        ranges.read(start and start.isoformat(), end and end.isoformat(), bucket)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("text", ["2027", "1796083200", "null", "NULL", "", "2026-11-30", "now"])
def test_what_is_no_moment_is_refused_and_not_taken_for_one(text: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        ranges.read(text, None, Bucket.DAY)
    assert caught.value.parameter == "start"
    with pytest.raises(InvalidParameter) as caught:
        ranges.read_open(None, text)
    assert caught.value.parameter == "end"


@pytest.mark.parametrize(
    "moment",
    [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(8999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(1970, 1, 1, 23, 59, tzinfo=timezone(timedelta(hours=23, minutes=59))),
    ],
)
def test_times_are_exact_from_the_first_to_the_last(moment: datetime) -> None:
    assert to_time(to_us(moment, "at")) == moment
