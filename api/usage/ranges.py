"""The stretch of time that a report is about: half-open, [start, end), and of bounded detail."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypeAlias

import msgspec
from litestar.params import QueryParameter

from api.errors import InvalidParameter
from api.schemas import to_us
from metering import clock
from metering.queries import Bucket

BUCKETS_MAX = 1500
SPAN_DAYS_DEFAULT = 30
END_OF_TIME_US = 2**63 - 1


WIDTH_US = {
    Bucket.MINUTE: 60 * 10**6,
    Bucket.HOUR: 3600 * 10**6,
    Bucket.DAY: 86_400 * 10**6,
}

# As a text: a converter of query parameters would take a year for a count of seconds.
StartQuery: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        description=f"First moment; {SPAN_DAYS_DEFAULT} days before the end if left out",
        schema_extra={"format": "date-time"},
    ),
]
EndQuery: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        description="First moment after; now if left out", schema_extra={"format": "date-time"}
    ),
]
BucketQuery: TypeAlias = Annotated[
    Bucket, QueryParameter(description="How finely the time is divided")
]


@dataclass(frozen=True, slots=True)
class Range:
    """[start_us, end_us)."""

    start_us: int
    end_us: int


def read(start: str | None, end: str | None, bucket: Bucket) -> Range:
    """The range asked for. Raises InvalidParameter when it is empty, vague or too finely divided.

    Without a start it is the last days, or as many buckets as may be had, if that is less.
    """
    end_us = clock.now_us() if end is None else _moment(end, "end")
    longest_us = WIDTH_US[bucket] * BUCKETS_MAX
    if start is None:
        return Range(end_us - min(longest_us, SPAN_DAYS_DEFAULT * WIDTH_US[Bucket.DAY]), end_us)
    start_us = _moment(start, "start")
    if start_us >= end_us:
        raise InvalidParameter("start is not before end", "start")
    if end_us - start_us > longest_us:
        raise InvalidParameter(
            f"more than {BUCKETS_MAX} buckets of a {bucket}: ask for a shorter time, or wider ones",
            "bucket",
        )
    return Range(start_us, end_us)


def read_open(start: str | None, end: str | None) -> Range:
    """The range asked for, where a missing bound is none. Raises InvalidParameter as `read`."""
    start_us = 0 if start is None else _moment(start, "start")
    end_us = END_OF_TIME_US if end is None else _moment(end, "end")
    if start_us >= end_us:
        raise InvalidParameter("start is not before end", "start")
    return Range(start_us, end_us)


def _moment(text: str, parameter: str) -> int:
    try:
        at = msgspec.convert(text, datetime)
    except msgspec.ValidationError:
        raise InvalidParameter(
            f"{parameter} is a time such as 2026-11-30T00:00:00Z", parameter
        ) from None
    if at.tzinfo is None:
        raise InvalidParameter(f"{parameter} needs an offset, such as a final Z", parameter)
    return to_us(at, parameter)
