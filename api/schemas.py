"""What several routes say alike: names, ids, amounts, times and pages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeAlias

from litestar.params import PathParameter, QueryParameter
from msgspec import Meta

from api import cursors
from api.errors import InvalidParameter

# PostgreSQL stores no NUL, and who reads a text on a terminal or a page is to see what it says:
# no control characters, and none that turn the text round. A line holds no line's end either; by
# itself `$` would let one follow.
LINE = r"^[^\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]*(?!\n)$"
LINES = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]*$"

Name: TypeAlias = Annotated[
    str, Meta(min_length=1, max_length=200, pattern=LINE, examples=["Acme"])
]
Prose: TypeAlias = Annotated[str, Meta(min_length=1, max_length=10_000, pattern=LINES)]
Currency: TypeAlias = Annotated[
    str, Meta(pattern=r"^[A-Z]{3}(?!\n)$", description="ISO 4217", examples=["USD"])
]
Amount: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[0-9]{1,9}(\.[0-9]{1,9})?(?!\n)$",
        description="A decimal amount in the tenant's currency",
        examples=["12.50"],
    ),
]
Instant: TypeAlias = Annotated[
    datetime,
    Meta(tz=True, description="RFC 3339, with its offset", examples=["2026-12-01T00:00:00Z"]),
]

_ID = r"^[A-Za-z0-9_.:-]{1,64}(?!\n)$"
TenantId: TypeAlias = Annotated[
    str, Meta(pattern=_ID, description="A tenant's id", examples=["ten_0193a0c2f1"])
]
PathId: TypeAlias = Annotated[str, PathParameter(pattern=_ID)]
TenantQuery: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        pattern=_ID, description="Which tenant; only an operator's key may name another"
    ),
]
CursorQuery: TypeAlias = Annotated[
    str | None,
    QueryParameter(max_length=1000, description="`next_cursor` of the page before"),
]
LimitQuery: TypeAlias = Annotated[
    int, QueryParameter(ge=1, le=cursors.PAGE_MAX, description="How many items, at most")
]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST_US = (datetime(9000, 1, 1, tzinfo=UTC) - _EPOCH) // _MICROSECOND


def to_time(at_us: int) -> datetime:
    """Epoch microseconds as a moment in UTC, exactly."""
    return _EPOCH + at_us * _MICROSECOND


def to_time_or_null(at_us: int | None) -> datetime | None:
    """The same, where there may be none."""
    return None if at_us is None else to_time(at_us)


def to_us(at: datetime, parameter: str) -> int:
    """A moment that was asked for as epoch microseconds, exactly.

    Raises InvalidParameter near the ends of the calendar: every moment that is kept, or counted on
    from, has to be one in every time zone.
    """
    at_us = (at - _EPOCH) // _MICROSECOND
    if not 0 <= at_us < _LAST_US:
        raise InvalidParameter(f"{parameter} is not between the years 1970 and 9000", parameter)
    return at_us


def to_us_or_null(at: datetime | None, parameter: str) -> int | None:
    """The same, where none may be given."""
    return None if at is None else to_us(at, parameter)
