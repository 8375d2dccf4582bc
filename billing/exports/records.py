"""Usage and receipts, request by request, oldest first. Changes nothing.

Each page is read in a snapshot of its own and the next one begins behind its last request, so that
no reader, however slow, keeps the database. What is settled meanwhile may be in it or not; nothing
is in it twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, func, select, tuple_

from billing import receipts
from billing.exports.columns import Column, Kind
from billing.money import format_nano
from billing.queries import lines
from billing.receipt_documents import iso, millionths
from billing.tables import adjustments
from billing.tables import receipts as receipts_table
from metering.database import snapshot
from metering.events import RequestSummary
from metering.tables import request_summaries, requests

PAGE = 500
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Whose requests, by when they ended: [start, end). Null is every tenant."""

    tenant_id: str | None
    start_us: int
    end_us: int


def _columns(described: str) -> tuple[Column, ...]:
    """Columns from words: `name` is text, `name#` a number, `name{}` a JSON object."""
    kinds = {"#": Kind.NUMBER, "{}": Kind.PAIRS}
    found = []
    for word in described.split():
        name = word.rstrip("#{}")
        found.append(Column(name, kinds.get(word[len(name) :], Kind.TEXT)))
    return tuple(found)


USAGE = _columns(
    "request_id tenant_id project_id project key_id end_user tags{} model route status"
    " finish_reason ended_by test_mode started_at ended_at input_tokens# cached_input_tokens#"
    " output_tokens# blocks# verified_blocks# complete_units# fragment_units# segmenter geo_mean#"
    " calibrated# tier review_reason information_bits# energy_class joules# energy_source"
    " energy_method tariff_version charged# adjusted# currency"
)
RECEIPT_LINES = _columns(
    "request_id tenant_id project_id end_user tags{} ended_at booked_at kind line# component"
    " detail quantity# unit unit_price# amount# currency receipt_sha256 kid"
)


def usage(database: Engine, chosen: Chosen, projects: Mapping[str, str]) -> Iterator[Record]:
    """What each request used and what it came to; `projects` are names by id."""

    def read(connection: Connection, page: Sequence[Any]) -> Iterator[Record]:
        given_back = _given_back(connection, [row["request_id"] for row in page])
        for row in page:
            final = msgspec.json.decode(row["body"], type=RequestSummary)
            yield _usage(row, final, given_back.get(row["request_id"], 0), projects)

    return _paged(database, chosen, read)


def receipt_envelopes(database: Engine, chosen: Chosen) -> Iterator[Record]:
    """Each signed receipt with its signed adjustments: what `dflash receipt verify` takes."""

    def read(connection: Connection, page: Sequence[Any]) -> Iterator[Record]:
        for row in page:
            envelope = receipts.receipt(connection, None, row["request_id"])
            if envelope is not None:
                signed = receipts.adjustments(connection, row["request_id"])
                yield {**envelope, "adjustments": signed}

    return _paged(database, chosen, read)


def receipt_lines(database: Engine, chosen: Chosen) -> Iterator[Record]:
    """Each line of each receipt and each adjustment, one a row: for whoever adds up."""

    def read(connection: Connection, page: Sequence[Any]) -> Iterator[Record]:
        for row in page:
            yield from _receipt_lines(connection, row)

    return _paged(database, chosen, read)


def _paged(
    database: Engine,
    chosen: Chosen,
    read: Callable[[Connection, Sequence[Any]], Iterator[Record]],
) -> Iterator[Record]:
    after: tuple[int, str] | None = None
    while True:
        with snapshot(database) as connection:
            page = _page(connection, chosen, after)
            found = list(read(connection, page))
        yield from found
        if len(page) < PAGE:
            return
        after = (page[-1]["ended_at_us"], page[-1]["request_id"])


def _page(
    connection: Connection, chosen: Chosen, after: tuple[int, str] | None
) -> Sequence[Mapping[Any, Any]]:
    summary, request, receipt = request_summaries.c, requests.c, receipts_table.c
    query = (
        select(
            summary.request_id,
            summary.tenant_id,
            summary.ended_at_us,
            summary.body,
            request.project_id,
            request.key_id,
            request.end_user,
            request.tags,
            request.model,
            request.route,
            request.test_mode,
            receipt.total_nano,
            receipt.currency,
            receipt.created_at_us,
            receipt.sha256,
            receipt.kid,
        )
        .select_from(request_summaries)
        .join(requests, request.id == summary.request_id)
        .outerjoin(receipts_table, receipt.request_id == summary.request_id)
        .where(summary.ended_at_us >= chosen.start_us, summary.ended_at_us < chosen.end_us)
        .order_by(summary.ended_at_us, summary.request_id)
        .limit(PAGE)
    )
    if chosen.tenant_id is not None:
        query = query.where(summary.tenant_id == chosen.tenant_id)
    if after is not None:
        query = query.where(tuple_(summary.ended_at_us, summary.request_id) > after)
    return connection.execute(query).mappings().all()


def _usage(
    row: Mapping[Any, Any],
    final: RequestSummary,
    adjusted_nano: int,
    projects: Mapping[str, str],
) -> Record:
    score, energy = final.confidence, final.energy
    complete = sum(unit.state == "complete" for unit in final.units)
    return {
        "request_id": final.request_id,
        "tenant_id": final.tenant_id,
        "project_id": row["project_id"],
        "project": projects.get(row["project_id"]),
        "key_id": row["key_id"],
        "end_user": row["end_user"],
        "tags": _tags(row),
        "model": row["model"],
        "route": row["route"],
        "status": final.status.value,
        "finish_reason": final.finish_reason,
        "ended_by": final.ended_by.value,
        "test_mode": row["test_mode"],
        "started_at": iso(final.started_at_us),
        "ended_at": iso(final.ended_at_us),
        "input_tokens": final.input_tokens,
        "cached_input_tokens": final.cached_input_tokens,
        "output_tokens": final.output_tokens,
        "blocks": final.blocks,
        "verified_blocks": final.verified_blocks,
        "complete_units": complete,
        "fragment_units": len(final.units) - complete,
        "segmenter": final.segmenter,
        "geo_mean": score.geo_mean if score else None,
        "calibrated": score.calibrated if score else None,
        "tier": score.tier.value if score else None,
        "review_reason": final.review_reason,
        "information_bits": millionths(final.information_ubits),
        "energy_class": energy.energy_class.value,
        "joules": millionths(energy.shown_uj),
        "energy_source": energy.source,
        "energy_method": energy.method,
        "tariff_version": final.tariff_version_id,
        "charged": None if row["total_nano"] is None else format_nano(row["total_nano"]),
        "adjusted": format_nano(adjusted_nano),
        "currency": row["currency"],
    }


def _receipt_lines(connection: Connection, row: Mapping[Any, Any]) -> Iterator[Record]:
    head = {
        "request_id": row["request_id"],
        "tenant_id": row["tenant_id"],
        "project_id": row["project_id"],
        "end_user": row["end_user"],
        "tags": _tags(row),
        "ended_at": iso(row["ended_at_us"]),
        "currency": row["currency"],
        "receipt_sha256": row["sha256"],
    }
    for number, line in enumerate(lines(connection, row["request_id"])):
        yield head | {
            "booked_at": iso(row["created_at_us"]),
            "kind": "line",
            "line": number,
            "component": line.component,
            "detail": line.detail,
            "quantity": line.quantity,
            "unit": line.unit,
            "unit_price": line.unit_price,
            "amount": format_nano(line.amount_nano),
            "kid": row["kid"],
        }
    made = adjustments.c
    for each in connection.execute(
        select(made.document, made.amount_nano, made.created_at_us, made.kid)
        .where(made.request_id == row["request_id"])
        .order_by(made.created_at_us, made.id)
    ):
        yield head | {
            "booked_at": iso(each.created_at_us),
            "kind": "adjustment",
            "component": "adjustment",
            "detail": json.loads(each.document)["reason"],
            "amount": format_nano(each.amount_nano),
            "kid": each.kid,
        }


def _given_back(connection: Connection, request_ids: Sequence[str]) -> dict[str, int]:
    """The sum of the adjustments of each of these requests that has any."""
    made = adjustments.c
    found = connection.execute(
        select(made.request_id, func.sum(made.amount_nano))
        .where(made.request_id.in_(request_ids))
        .group_by(made.request_id)
    )
    return {request_id: int(amount) for request_id, amount in found}


def _tags(row: Mapping[Any, Any]) -> dict[str, str] | None:
    return None if row["tags"] is None else json.loads(row["tags"])
