"""The days that a tenant's page is about, as its form and its links say them."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from litestar.exceptions import ValidationException
from litestar.params import QueryParameter

from dashboards.access import TenantDesk
from dashboards.ranges import DateRange, InvalidRange, parse_range
from metering import clock

PRESET_DAYS = (7, 30, 90)

FirstDay: TypeAlias = Annotated[str | None, QueryParameter(name="from")]
LastDay: TypeAlias = Annotated[str | None, QueryParameter(name="to")]


def read_days(desk: TenantDesk, first: str | None, last: str | None) -> DateRange:
    """The range asked for, in the tenant's days; a refusal says what is wrong with it."""
    try:
        return parse_range(first, last, desk.zone, clock.now_us())
    except InvalidRange as error:
        raise ValidationException(str(error)) from None


def presets(days: DateRange) -> tuple[tuple[int, DateRange], ...]:
    """The ranges that are one click away, each ending today."""
    now_us = clock.now_us()
    return tuple((count, days.recent(count, now_us)) for count in PRESET_DAYS)


def query(days: DateRange) -> str:
    """The range as the query of a link."""
    return f"from={days.first.isoformat()}&to={days.last.isoformat()}"
