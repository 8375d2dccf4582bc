"""The rated lines and adjustments behind an invoice, alike ones of a day added up. Changes nothing.

When a line was booked tells which invoice of its service period it stands on, so stretches of
booking time choose what belongs to one invoice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Row,
    Select,
    case,
    false,
    func,
    literal,
    null,
    or_,
    select,
)

from billing.exports.stretches import Booked
from billing.invoices.period_models import from_millionths
from billing.invoices.usage import TENTH_UJ
from billing.quantities import millionths
from billing.rating import Component
from billing.tables import adjustments, rated_lines, receipts
from metering.tables import request_summaries, requests

PAGE = 2000
ADJUSTMENT = "adjustment"
# Their price differs from request to request, so it is no price to group by.
UNPRICED = (Component.MINIMUM, Component.MAXIMUM, Component.WRITE_OFF)


@dataclass(frozen=True, slots=True)
class Part:
    """Alike lines of one day. The measures are of the requests whose first line is among them, so
    that each request counts once.
    """

    component: str
    detail: str
    unit: str
    unit_price: str | None  # null where the lines have no common one
    tariff_version_id: str | None
    project_id: str | None
    key_id: str
    end_user: str | None
    tags: str | None  # JSON
    model: str
    energy_class: str
    quantity: Decimal
    amount_nano: int
    requests: int
    complete_units: int
    fragment_units: int
    information_ubits: int | None
    shown_uj: int | None

    @property
    def key(self) -> tuple[str | None, ...]:
        """The invoice line that this is a part of (`lines.InvoiceLine.key`)."""
        kind = ADJUSTMENT if self.component == ADJUSTMENT else "usage"
        return (kind, self.component, self.detail, self.unit, self.tariff_version_id)


def parts(
    connection: Connection, tenant_id: str, start_us: int, end_us: int, booked: Sequence[Booked]
) -> Iterator[Part]:
    """The parts of requests that ended in [start, end), in a fixed order, read as they are used."""
    for query in (_lines(connection, booked), _adjustments(booked)):
        chosen = query.where(
            request_summaries.c.tenant_id == tenant_id,
            request_summaries.c.ended_at_us >= start_us,
            request_summaries.c.ended_at_us < end_us,
        )
        for row in connection.execute(chosen, execution_options={"yield_per": PAGE}):
            yield _part(row)


def _part(row: Row[Any]) -> Part:
    values = list(row)
    quantity, amount, count, complete, fragments = map(int, values[-7:-2])
    ubits, shown = (None if value is None else int(value) for value in values[-2:])
    measures = [from_millionths(quantity), amount, count, complete, fragments, ubits, shown]
    return Part(*[*values[:-7], *measures])


def _lines(connection: Connection, booked: Sequence[Booked]) -> Select[Any]:
    line, summary = rated_lines.c, request_summaries.c
    price = case((line.component.in_(UNPRICED), null()), else_=line.unit_price)
    first = line.line == 0

    def once(column: ColumnElement[Any]) -> ColumnElement[Any]:
        return func.coalesce(func.sum(case((first, column), else_=0)), 0)

    alike = (line.component, line.detail, line.unit, price, line.tariff_version_id, *_bearers())
    return (
        select(
            *alike,
            func.sum(millionths(connection, line.quantity)),
            func.sum(line.amount_nano),
            once(literal(1)),
            once(summary.complete_units),
            once(summary.fragment_units),
            func.sum(case((first, summary.information_ubits))),
            func.sum(case((first, summary.energy_uj - summary.energy_uj % TENTH_UJ))),
        )
        .select_from(rated_lines)
        .join(request_summaries, summary.request_id == line.request_id)
        .join(requests, requests.c.id == line.request_id)
        .join(receipts, receipts.c.request_id == line.request_id)
        .where(line.component != Component.WAIVED, _within(booked, receipts.c.created_at_us))
        .group_by(*alike)
        .order_by(*alike)
    )


def _adjustments(booked: Sequence[Booked]) -> Select[Any]:
    """Refunds and fees given back, on the days of the requests that they are of."""
    summary, bearers = request_summaries.c, _bearers()
    nothing = literal(0)
    return (
        select(
            literal(ADJUSTMENT),
            literal(""),
            literal("adjustments"),
            null(),
            null(),
            *bearers,
            func.count() * 1_000_000,
            func.sum(adjustments.c.amount_nano),
            nothing,
            nothing,
            nothing,
            null(),
            null(),
        )
        .select_from(adjustments)
        .join(request_summaries, summary.request_id == adjustments.c.request_id)
        .join(requests, requests.c.id == adjustments.c.request_id)
        .where(_within(booked, adjustments.c.created_at_us))
        .group_by(*bearers)
        .order_by(*bearers)
    )


def _bearers() -> tuple[ColumnElement[Any], ...]:
    """Who a charge is passed on to, and what tells requests of one day apart."""
    request = requests.c
    return (
        request.project_id,
        request.key_id,
        request.end_user,
        request.tags,
        request.model,
        request_summaries.c.energy_class,
    )


def _within(booked: Sequence[Booked], at_us: ColumnElement[int]) -> ColumnElement[bool]:
    stretches = ((at_us > each.after_us) & (at_us <= each.through_us) for each in booked)
    return or_(false(), *stretches)
