"""Charges added up by the hour, for pages that show months: a projection of the rated lines.

Whoever stores a line touches its hour in the same transaction and under the tenant's lock; an hour
that is over is then counted. A reader takes counted hours as they were added up and reads the
lines of the others, so what it sees is exact at every moment. Invoices are made of the lines.

    start_us                                            end_us
    [ lines )[ counted )[ counted )[ lines )[ counted )[ lines )
    part of an hour               touched since           part of an hour
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, tzinfo
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    Engine,
    Insert,
    Table,
    and_,
    cast,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite

from billing import spent_hours
from billing.charged_tables import charged_hours, hour_charges, hour_spending
from billing.differences import Difference
from billing.ledger.accounts import lock_tenant
from billing.ledger.balances import currency_of
from billing.quantities import millionths
from billing.tables import rated_lines
from billing.turns import turns
from metering.database import snapshot, transaction
from metering.local_days import filled, runs
from metering.prepared import Prepared

HOUR_US = 3600 * 10**6
SETTLES_US = 10 * 60 * 10**6  # for so long after its end an hour is likely to be added to
HOURS_MAX = 24  # counted in one transaction: it has the tenant's lock

Stretch = tuple[int, int]  # [start_us, end_us)


@dataclass(frozen=True, slots=True)
class Sum:
    """Lines that are alike, added up; `unit_price` is null where theirs differ."""

    tariff_version_id: str
    component: str
    detail: str
    unit: str
    quantity_millionths: int
    unit_price: str | None
    amount_nano: int


def touch(connection: Connection, tenant_id: str, at_us: int) -> None:
    """Note that lines of this moment were added. The caller has the tenant's lock."""
    _TOUCH.run(
        connection,
        {"tenant_id": tenant_id, "start_us": at_us - at_us % HOUR_US, "is_counted": False},
    )


def _touch(dialect: str) -> Insert:
    insert_into = sqlite.insert if dialect == "sqlite" else postgresql.insert
    return insert_into(charged_hours).on_conflict_do_update(
        index_elements=["tenant_id", "start_us"],
        set_={"is_counted": False},
        where=charged_hours.c.is_counted,
    )


_TOUCH = Prepared(_touch)


def next_due(connection: Connection, now_us: int, after: str = "") -> str | None:
    """The first tenant after another, by their ids, with an hour to be counted; null at the end."""
    hour = charged_hours.c
    due = select(hour.tenant_id).where(*_due(now_us), hour.tenant_id > after)
    return connection.scalar(due.order_by(hour.tenant_id, hour.start_us).limit(1))


def count(database: Engine, tenant_id: str, now_us: int) -> int:
    """Count hours of a tenant that are over and were touched since; how many there were.

    Bounded: there may be more.
    """
    hour = charged_hours.c
    due = select(hour.start_us).where(*_due(now_us), hour.tenant_id == tenant_id)
    with transaction(database) as connection:
        lock_tenant(connection, tenant_id, currency_of(connection, tenant_id))
        starts = connection.scalars(due.order_by(hour.start_us).limit(HOURS_MAX)).all()
        for start_us in starts:
            _count(connection, tenant_id, start_us)
    return len(starts)


def count_all(database: Engine, now_us: int) -> int:
    """Count all hours that `count` may, of every tenant; how many there were.

    Raises an ExceptionGroup of what failed, once those that can be counted are.
    """
    hours, tenant_id = 0, ""
    with turns("hours") as each:
        while True:
            with snapshot(database) as connection:
                found = next_due(connection, now_us, tenant_id)
            if found is None:
                return hours
            tenant_id = found
            with each.of(tenant_id):
                hours += sum(iter(partial(count, database, tenant_id, now_us), 0))


def rebuild(connection: Connection) -> None:
    """Note every hour that holds a line as to be counted anew."""
    for table in (hour_charges, hour_spending, charged_hours):
        connection.execute(delete(table))
    start = rated_lines.c.event_time_us - rated_lines.c.event_time_us % HOUR_US
    connection.execute(
        insert(charged_hours).from_select(
            ["tenant_id", "start_us", "is_counted"],
            select(rated_lines.c.tenant_id, start, literal(False)).distinct(),
        )
    )


def forget(connection: Connection, tenant_id: str, at_us: int) -> None:
    """Count the hour of this moment anew, because what its requests carry was erased.

    The caller has the tenant's lock.
    """
    touch(connection, tenant_id, at_us)
    spent_hours.forget(connection, tenant_id, at_us - at_us % HOUR_US)


def sums(connection: Connection, tenant_id: str, start_us: int, end_us: int) -> list[Sum]:
    """The lines of requests that ended in [start, end), alike ones added up, in no order."""
    line, hour = rated_lines.c, hour_charges.c
    first_us, last_us, stretches = divided(connection, tenant_id, start_us, end_us)
    counted = (
        select(
            hour.tariff_version_id,
            hour.component,
            hour.detail,
            hour.unit,
            func.sum(hour.quantity_millionths),
            func.min(hour.unit_price_low),
            func.max(hour.unit_price_high),
            func.sum(hour.amount_nano),
        )
        .join(charged_hours, _same_hour())
        .where(*_counted(tenant_id, first_us, last_us))
        .group_by(hour.tariff_version_id, hour.component, hour.detail, hour.unit)
    )
    alike = (line.tariff_version_id, line.component, line.detail, line.unit)
    found: dict[tuple[str, ...], Sum] = {}
    for row in _each(
        connection,
        counted if first_us < last_us else None,
        [
            select(
                *alike,
                func.sum(millionths(connection, line.quantity)),
                func.min(line.unit_price),
                func.max(line.unit_price),
                func.sum(line.amount_nano),
            )
            .where(*_lines_of(tenant_id, stretch))
            .group_by(*alike)
            for stretch in stretches
        ],
    ):
        _add(found, row)
    return list(found.values())


def daily(
    connection: Connection, tenant_id: str, start_us: int, end_us: int, zone: tzinfo
) -> Counter[tuple[date, str, str]]:
    """Nano of each (day of the zone, component, currency) in [start, end)."""
    totals: Counter[tuple[date, str, str]] = Counter()
    ended, line, hour = rated_lines.c.event_time_us, rated_lines.c, hour_charges.c
    owned = (line.tenant_id == tenant_id, ended >= start_us, ended < end_us)
    parts: list[tuple[date, Stretch]] = []
    uncounted = _uncounted(connection, tenant_id, start_us, end_us)
    days = list(filled(connection, ended, owned, zone))
    for day, day_us, next_us in days:
        parts += [(day, stretch) for stretch in _divided(day_us, next_us, uncounted)[2]]
    for run in runs(days, zone):
        first_us, last_us, _ = _divided(run.from_us, run.until_us, ())
        counted = (
            select(
                run.place(hour.start_us).label("place"),
                hour.component,
                hour.currency,
                func.sum(hour.amount_nano),
            )
            .join(charged_hours, _same_hour())
            .where(*_counted(tenant_id, first_us, last_us))
            # An hour that goes on into the next day is in neither.
            .where((hour.start_us - run.begin_us) % run.length_us <= run.length_us - HOUR_US)
            .group_by("place", hour.component, hour.currency)
        )
        for place, component, currency, amount in connection.execute(counted):
            totals[run.day(place), component, currency] += int(amount)
    for day, stretch in parts:
        within = (
            select(line.component, line.currency, func.sum(line.amount_nano))
            .where(*_lines_of(tenant_id, stretch))
            .group_by(line.component, line.currency)
        )
        for component, currency, amount in connection.execute(within):
            totals[day, component, currency] += int(amount)
    return totals


def check(connection: Connection) -> Iterator[Difference]:
    """Every tenant and hour whose count is not what its lines come to. Reads all lines."""
    line, hour = rated_lines.c, hour_charges.c
    start = line.event_time_us - line.event_time_us % HOUR_US
    held = {
        (tenant, at): int(nano)
        for tenant, at, nano in connection.execute(
            select(line.tenant_id, start.label("hour"), func.sum(line.amount_nano)).group_by(
                line.tenant_id, "hour"
            )
        )
    }
    counted = _by_hour(connection, hour_charges, hour.amount_nano)
    spent = _by_hour(connection, hour_spending, hour_spending.c.charged_nano)
    known = {
        (row.tenant_id, row.start_us): row.is_counted
        for row in connection.execute(select(charged_hours))
    }
    for place in sorted(held.keys() | known.keys()):
        subject = f"{place[0]} hour {place[1]}"
        if place not in known:
            yield Difference("hours with charges are known", subject, str(held[place]), "none")
            continue
        expected = held.get(place, 0)
        for name, figures in (("charges", counted), ("spending", spent)):
            found = figures.get(place, 0)
            if known[place] and expected != found:
                check_name = f"{name} counted by the hour = lines"
                yield Difference(check_name, subject, str(expected), str(found))


def _by_hour(
    connection: Connection, table: Table, amount: Column[int]
) -> dict[tuple[str, int], int]:
    place = (table.c.tenant_id, table.c.start_us)
    rows = connection.execute(select(*place, func.sum(amount)).group_by(*place))
    return {(tenant, at): int(nano) for tenant, at, nano in rows}


def _due(now_us: int) -> tuple[ColumnElement[bool], ...]:
    hour = charged_hours.c
    return (hour.is_counted.is_(False), hour.start_us <= now_us - HOUR_US - SETTLES_US)


def _count(connection: Connection, tenant_id: str, start_us: int) -> None:
    line, hour = rated_lines.c, hour_charges.c
    connection.execute(
        delete(hour_charges).where(hour.tenant_id == tenant_id, hour.start_us == start_us)
    )
    alike = (line.tariff_version_id, line.component, line.detail, line.unit, line.currency)
    connection.execute(
        insert(hour_charges).from_select(
            [column.name for column in hour],
            select(
                literal(tenant_id),
                literal(start_us, BigInteger),
                *alike,
                cast(func.sum(millionths(connection, line.quantity)), BigInteger),
                func.min(line.unit_price),
                func.max(line.unit_price),
                func.sum(line.amount_nano),
            )
            .where(*_lines_of(tenant_id, (start_us, start_us + HOUR_US)))
            .group_by(*alike),
        )
    )
    spent_hours.store(connection, tenant_id, start_us, start_us + HOUR_US)
    connection.execute(
        update(charged_hours)
        .where(charged_hours.c.tenant_id == tenant_id, charged_hours.c.start_us == start_us)
        .values(is_counted=True)
    )


def divided(
    connection: Connection, tenant_id: str, start_us: int, end_us: int
) -> tuple[int, int, list[Stretch]]:
    """The first and the last of the whole hours of a span, of which those that are counted may be
    read as they were added up, and the stretches in it whose lines are to be read.
    """
    return _divided(start_us, end_us, _uncounted(connection, tenant_id, start_us, end_us))


def _uncounted(connection: Connection, tenant_id: str, start_us: int, end_us: int) -> Sequence[int]:
    """The hours that begin in [start, end) and are to be counted, in their order."""
    hour = charged_hours.c
    return connection.scalars(
        select(hour.start_us)
        .where(
            hour.tenant_id == tenant_id,
            hour.start_us >= start_us,
            hour.start_us < end_us,
            hour.is_counted.is_(False),
        )
        .order_by(hour.start_us)
    ).all()


def _divided(
    start_us: int, end_us: int, uncounted: Sequence[int]
) -> tuple[int, int, list[Stretch]]:
    first_us = -(-start_us // HOUR_US) * HOUR_US
    last_us = end_us // HOUR_US * HOUR_US
    if first_us >= last_us:
        return first_us, first_us, [(start_us, end_us)]
    within = uncounted[bisect_left(uncounted, first_us) : bisect_left(uncounted, last_us)]
    stretches = [(start_us, first_us)]
    for at_us in [*within, last_us]:
        until_us = end_us if at_us == last_us else at_us + HOUR_US
        if stretches[-1][1] == at_us:
            stretches[-1] = (stretches[-1][0], until_us)
        else:
            stretches.append((at_us, until_us))
    return first_us, last_us, [stretch for stretch in stretches if stretch[0] < stretch[1]]


def _each(connection: Connection, counted: Any, of_lines: Iterable[Any]) -> Iterator[Sequence[Any]]:
    for query in ([] if counted is None else [counted]) + list(of_lines):
        yield from connection.execute(query)


def _add(found: dict[tuple[str, ...], Sum], row: Sequence[Any]) -> None:
    version, component, detail, unit, quantity, low, high, amount = row
    key = (version, component, detail, unit)
    price = low if low == high else None
    before = found.get(key)
    if before is None:
        found[key] = Sum(*key, int(quantity), price, int(amount))
        return
    found[key] = Sum(
        *key,
        before.quantity_millionths + int(quantity),
        price if price == before.unit_price else None,
        before.amount_nano + int(amount),
    )


def _lines_of(tenant_id: str, stretch: Stretch) -> tuple[ColumnElement[bool], ...]:
    ended = rated_lines.c.event_time_us
    return (rated_lines.c.tenant_id == tenant_id, ended >= stretch[0], ended < stretch[1])


def _counted(tenant_id: str, first_us: int, last_us: int) -> tuple[ColumnElement[bool], ...]:
    hour = hour_charges.c
    return (
        hour.tenant_id == tenant_id,
        hour.start_us >= first_us,
        hour.start_us < last_us,
        charged_hours.c.is_counted.is_(True),
    )


def _same_hour() -> ColumnElement[bool]:
    return and_(
        charged_hours.c.tenant_id == hour_charges.c.tenant_id,
        charged_hours.c.start_us == hour_charges.c.start_us,
    )
