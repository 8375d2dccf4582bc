"""What a tenant spent, divided by what its requests carry: key, project, end user, model or tag."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Connection, String, Text, cast, func, select
from sqlalchemy.dialects.postgresql import JSONB

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
    name = _name(connection, by, tag)
    given_back = (
        select(adjustments.c.request_id, func.sum(adjustments.c.amount_nano).label("amount_nano"))
        .where(adjustments.c.tenant_id == tenant_id)
        .group_by(adjustments.c.request_id)
        .subquery()
    )
    summary = request_summaries.c
    charged = func.sum(receipts.c.total_nano)
    rows = connection.execute(
        select(
            name,
            func.count(),
            func.sum(summary.input_tokens),
            func.sum(summary.output_tokens),
            charged,
            func.coalesce(func.sum(given_back.c.amount_nano), 0),
            receipts.c.currency,
        )
        .select_from(request_summaries)
        .join(requests, requests.c.id == summary.request_id)
        .join(receipts, receipts.c.request_id == summary.request_id)
        .outerjoin(given_back, given_back.c.request_id == summary.request_id)
        .where(
            summary.tenant_id == tenant_id,
            summary.ended_at_us >= start_us,
            summary.ended_at_us < end_us,
        )
        .group_by(name, receipts.c.currency)
        .order_by(charged.desc(), name)
    )
    return [
        Spending(
            name=row[0],
            requests=row[1],
            input_tokens=int(row[2]),
            output_tokens=int(row[3]),
            charged_nano=int(row[4]),
            adjusted_nano=int(row[5]),
            currency=row[6],
        )
        for row in rows
    ]


def _name(connection: Connection, by: Division, tag: str | None) -> ColumnElement[Any]:
    if by is not Division.TAG:
        column = {
            Division.KEY: requests.c.key_id,
            Division.PROJECT: requests.c.project_id,
            Division.END_USER: requests.c.end_user,
            Division.MODEL: requests.c.model,
        }[by]
        return column.label("name")
    if not tag:
        raise ValueError("which tag?")
    if connection.dialect.name == "postgresql":
        return cast(requests.c.tags, JSONB).op("->>")(cast(tag, Text)).label("name")
    quoted = '$."' + tag.replace('"', '""') + '"'
    return func.json_extract(requests.c.tags, quoted, type_=String).label("name")
