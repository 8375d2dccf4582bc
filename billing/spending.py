"""What a tenant spent, divided by what its requests carry: key, project, end user, model or tag."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Text,
    cast,
    func,
    select,
)
from sqlalchemy.dialects.postgresql import JSONB

from billing import charged_hours, spent_hours
from billing.tables import adjustments, receipts
from metering.tables import request_summaries, requests


class Division(StrEnum):
    """What spending can be divided by."""

    KEY = "key"
    PROJECT = "project"
    END_USER = "end_user"
    MODEL = "model"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class Spending:
    """What the requests of one name came to. A null name is those that carry none."""

    name: str | None
    requests: int
    input_tokens: int
    output_tokens: int
    charged_nano: int
    adjusted_nano: int  # negative was given back
    currency: str


_COLUMN = {
    Division.KEY: "key_id",
    Division.PROJECT: "project_id",
    Division.END_USER: "end_user",
    Division.MODEL: "model",
    Division.TAG: "tags",
}


def spending(
    connection: Connection,
    tenant_id: str,
    start_us: int,
    end_us: int,
    by: Division,
    *,
    tag: str | None = None,
) -> list[Spending]:
    """Requests that ended in [start, end), dearest first; with `by` a tag, `tag` names which."""
    first_us, last_us, stretches = charged_hours.divided(connection, tenant_id, start_us, end_us)
    sources = [spent_hours.of_requests(tenant_id, *stretch) for stretch in stretches]
    if first_us < last_us:
        sources.append(spent_hours.of_hours(tenant_id, first_us, last_us))
    totals: dict[tuple[str | None, str], list[int]] = {}
    for source in sources:
        rows = source.subquery()
        name = _name(connection, rows, by, tag)
        sums = (func.sum(rows.c[figure]) for figure in spent_hours.FIGURES)
        _add(totals, connection.execute(_grouped(name, rows, *sums)), 0)
    given_back = _adjustments(tenant_id, start_us, end_us).subquery()
    name = _name(connection, given_back, by, tag)
    adjusted = func.sum(given_back.c.amount_nano)
    _add(totals, connection.execute(_grouped(name, given_back, adjusted)), len(spent_hours.FIGURES))
    found = [
        Spending(name, requested, tokens_in, tokens_out, charged, given, currency)
        for (name, currency), (requested, tokens_in, tokens_out, charged, given) in totals.items()
    ]
    return sorted(found, key=lambda each: (-each.charged_nano, each.name or "", each.currency))


def _grouped(name: ColumnElement[Any], rows: FromClause, *sums: ColumnElement[Any]) -> Select[Any]:
    return select(name, rows.c.currency, *sums).group_by(name, rows.c.currency)


def _add(totals: dict[tuple[str | None, str], list[int]], rows: Iterable[Any], place: int) -> None:
    """Add rows of (name, currency, figures) to the figures from this place on."""
    for name, currency, *figures in rows:
        total = totals.setdefault((name, currency), [0] * (len(spent_hours.FIGURES) + 1))
        for offset, figure in enumerate(figures):
            total[place + offset] += int(figure)


def _adjustments(tenant_id: str, start_us: int, end_us: int) -> Select[Any]:
    """What was given back of requests that ended in [start, end), with what they carry."""
    ended = request_summaries.c.ended_at_us
    return (
        select(*spent_hours.CARRIED, adjustments.c.amount_nano)
        .select_from(adjustments)
        .join(request_summaries, request_summaries.c.request_id == adjustments.c.request_id)
        .join(requests, requests.c.id == adjustments.c.request_id)
        .join(receipts, receipts.c.request_id == adjustments.c.request_id)
        .where(adjustments.c.tenant_id == tenant_id, ended >= start_us, ended < end_us)
    )


def _name(
    connection: Connection, rows: FromClause, by: Division, tag: str | None
) -> ColumnElement[Any]:
    column = rows.c[_COLUMN[by]]
    if by is not Division.TAG:
        return column.label("name")
    if not tag:
        raise ValueError("which tag?")
    if connection.dialect.name == "postgresql":
        return cast(column, JSONB).op("->>")(cast(tag, Text)).label("name")
    # Not by a path, which could quote neither a quote nor what is stored escaped.
    each = func.json_each(column).table_valued("key", "value")
    found = select(each.c.value).where(each.c.key == tag).correlate(rows)
    return found.scalar_subquery().label("name")
