"""Days of a time zone as spans of instants: half-open, as long as the zone's clocks make them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo

from sqlalchemy import Column, ColumnElement, Connection, func, select


def day_of(at_us: int, zone: tzinfo) -> date:
    """The calendar day of an instant."""
    return datetime.fromtimestamp(at_us // 10**6, UTC).astimezone(zone).date()


def begin_us(day: date, zone: tzinfo) -> int:
    """The instant at which a day begins.

    Where midnight is skipped, reading it by the offset before the change gives the change itself.
    Where it comes twice, the first counts, unless the clock then still falls back into the day
    before.
    """
    midnight = datetime.combine(day, time.min, zone)
    at = int(midnight.timestamp())
    if datetime.fromtimestamp(at, UTC).astimezone(zone).date() < day:
        at = int(midnight.replace(fold=1).timestamp())
    return at * 10**6


def spans(start_us: int, end_us: int, zone: tzinfo) -> Iterator[tuple[date, int, int]]:
    """The days of [start, end), each with its part of that span; nothing of an empty one."""
    day = day_of(start_us, zone)
    while start_us < end_us:
        day += timedelta(days=1)
        following_us = min(begin_us(day, zone), end_us)
        yield day - timedelta(days=1), start_us, following_us
        start_us = following_us


def filled(
    connection: Connection,
    moment: Column[int],
    within: Sequence[ColumnElement[bool]],
    zone: tzinfo,
) -> Iterator[tuple[date, int, int]]:
    """The days from the first row's moment to the last's, of those that lie within.

    A query for each of them adds up what one over all would have to sort first.
    """
    first, last = (
        connection.scalar(select(bound(moment)).where(*within)) for bound in (func.min, func.max)
    )
    return iter(()) if first is None or last is None else spans(first, last + 1, zone)
