"""Days of a time zone as spans of instants: half-open, as long as the zone's clocks make them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class Run:
    """Days in a row that are equally long, of which [from_us, until_us) is looked at."""

    first: date
    begin_us: int  # of the first
    length_us: int  # of each
    from_us: int
    until_us: int

    def ends_before(self, day: date, begins_us: int, length_us: int) -> bool:
        """Whether a day of this length would be the next one of it."""
        count = (day - self.first).days
        return (begins_us, length_us) == (self.begin_us + count * self.length_us, self.length_us)

    def day(self, place: int) -> date:
        """The day at a place, of which the first is 0."""
        return self.first + timedelta(days=place)

    def place(self, moment: Column[int]) -> ColumnElement[int]:
        """The place of the day that a moment of [from_us, until_us) lies in."""
        return (moment - self.begin_us) // self.length_us


def runs(days: Iterable[tuple[date, int, int]], zone: tzinfo) -> list[Run]:
    """Days, with the part of each that is looked at, in as few runs as the zone's clocks allow."""
    found: list[Run] = []
    for day, from_us, until_us in days:
        if from_us == until_us:
            continue  # the zone left it out
        begins_us = begin_us(day, zone)
        length_us = begin_us(day + timedelta(days=1), zone) - begins_us
        last = found[-1] if found else None
        if last is not None and last.ends_before(day, begins_us, length_us):
            found[-1] = replace(last, until_us=until_us)
        else:
            found.append(Run(day, begins_us, length_us, from_us, until_us))
    return found


def filled(
    connection: Connection,
    moment: Column[int],
    within: Sequence[ColumnElement[bool]],
    zone: tzinfo,
) -> Iterator[tuple[date, int, int]]:
    """The days from the first row's moment to the last's, of those that lie within."""
    first, last = (
        connection.scalar(select(bound(moment)).where(*within)) for bound in (func.min, func.max)
    )
    return iter(()) if first is None or last is None else spans(first, last + 1, zone)
