"""Receipts: the list, one receipt with what it was for, and the signed document to take away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from litestar import MediaType, Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromQuery
from sqlalchemy import Connection

from billing import queries as billing_queries
from billing import receipts, review_outcomes
from billing.errors import InvalidReceipt
from billing.money import parse_nano
from billing.receipt_documents import epoch_us
from dashboards import cursors
from dashboards.billing.days import FirstDay, LastDay, presets, query, read_days
from dashboards.billing.output import cut
from dashboards.injected import ADesk, AHost, PathId
from dashboards.rendering import page, url
from dashboards.sessions import PageRequest
from metering import queries as metering_queries
from metering.database import snapshot
from metering.energy.replicas import Reason

PAGE_SIZE = 50
GREEN_REASONS = {
    Reason.LOWEST: "a token took the least there",
    Reason.LOWEST_WITH_ROOM: "a token took the least there of those that had room",
    Reason.RUNNING_BATCH: "it joined a batch that ran near the lowest figure",
    Reason.ONLY_ONE: "there was only one replica, so nothing to choose",
    Reason.TOO_FEW: "too few requests had completed on the others to compare them",
    Reason.NOT_COMPARABLE: "no two replicas were metered in the same way",
}


@dataclass(frozen=True, slots=True)
class LineView:
    """One line of a receipt; quantity and price are printed as the receipt states them."""

    component: str
    detail: str
    quantity: str
    unit: str
    unit_price: str
    amount_nano: int


@dataclass(frozen=True, slots=True)
class AdjustmentView:
    """One adjustment. `fault` is null where it verifies and cites the receipt's hash."""

    reason: str
    joules: str | None  # where it states energy that settled late
    amount_nano: int
    issued_at_us: int
    fault: str | None


@dataclass(frozen=True, slots=True)
class ReceiptView:
    """A signed receipt, checked. `net_nano` is the total with the adjustments applied."""

    document: Mapping[str, Any]
    lines: tuple[LineView, ...]
    adjustments: tuple[AdjustmentView, ...]
    total_nano: int
    net_nano: int
    issued_at_us: int
    sha256: str
    kid: str
    algorithm: str
    signature: str
    fault: str | None


@get("/receipts", sync_to_thread=True)
def list_receipts(  # noqa: PLR0917 -- injected by name, called by the router alone
    request: PageRequest,
    host: AHost,
    desk: ADesk,
    first: FirstDay = None,
    last: LastDay = None,
    cursor: FromQuery[str | None] = None,
) -> Response[str]:
    """The receipts of a range of days, newest first, a page at a time."""
    days = read_days(desk, first, last)
    after = cursors.decode(cursor, cursors.TimedPosition)
    with snapshot(host.database) as connection:
        found = billing_queries.receipt_rows(
            connection,
            desk.tenant_id,
            start_us=days.start_us,
            end_us=days.end_us,
            limit=PAGE_SIZE + 1,
            cursor=(after.at_us, after.id) if after else None,
        )
    shown = found[:PAGE_SIZE]
    here = url(f"/receipts?{query(days)}")
    more = len(found) > PAGE_SIZE
    following = cursors.encode((shown[-1].ended_at_us, shown[-1].request_id)) if more else ""
    return page(
        request,
        "billing/receipts.html",
        desk=desk,
        range=days,
        presets=presets(days),
        export_query=query(days),
        receipts=shown,
        cursor=cursor,
        first_url=here,
        next_url=f"{here}&cursor={following}" if more else None,
    )


@get("/receipts/{request_id:str}", sync_to_thread=True)
def show_receipt(
    request: PageRequest,
    host: AHost,
    desk: ADesk,
    request_id: PathId,
) -> Response[str]:
    """One request: what it cost and why, what it said unit by unit, and who vouches for it."""
    with snapshot(host.database) as connection:
        record = metering_queries.request(connection, desk.tenant_id, request_id)
        if record is None:
            raise NotFoundException("There is no receipt with this id.")
        summary = metering_queries.summary(connection, request_id)
        receipt = read_receipt(connection, desk.tenant_id, request_id)
        trace = metering_queries.trace(connection, request_id)
        reviewed = review_outcomes.outcome(connection, request_id)
    withheld = reviewed is not None and reviewed.withheld
    output = record.output if desk.sees_content and not withheld else None
    return page(
        request,
        "billing/receipt.html",
        desk=desk,
        record=record,
        summary=summary,
        receipt=receipt,
        trace=trace,
        reviewed=reviewed,
        withheld=withheld,
        grid=host.grid,
        green_reasons=GREEN_REASONS,
        pieces=None if output is None else cut(output, summary.units if summary else ()),
    )


@get("/receipts/{request_id:str}/receipt.json", sync_to_thread=True)
def signed_receipt(host: AHost, desk: ADesk, request_id: PathId) -> Response[bytes]:
    """The receipt and its adjustments, signed, as a file that `dflash receipt verify` takes."""
    with snapshot(host.database) as connection:
        envelope = receipts.receipt(connection, desk.tenant_id, request_id)
        adjustments = receipts.adjustments(connection, request_id)
    if envelope is None:
        raise NotFoundException("There is no receipt with this id.")
    return _file({"receipt": envelope, "adjustments": adjustments}, f"{request_id}.json")


@get("/receipts/keys.json", sync_to_thread=True)
def public_keys(host: AHost, desk: ADesk) -> Response[bytes]:
    """Every public key that ever signed a receipt here, as a JSON Web Key Set."""
    with snapshot(host.database) as connection:
        return _file(receipts.public_keys(connection), "keys.json")


def read_receipt(connection: Connection, tenant_id: str, request_id: str) -> ReceiptView | None:
    """The tenant's receipt for a request with its adjustments, all checked; null without one."""
    envelope = receipts.receipt(connection, tenant_id, request_id)
    if envelope is None:
        return None
    keys = receipts.public_keys(connection)
    document = envelope["receipt"]
    adjustments = tuple(
        _adjustment(signed, envelope["sha256"], keys)
        for signed in receipts.adjustments(connection, request_id)
    )
    total_nano = parse_nano(document["total"])
    return ReceiptView(
        document=document,
        lines=tuple(_line(line) for line in document["lines"]),
        adjustments=adjustments,
        total_nano=total_nano,
        net_nano=total_nano + sum(each.amount_nano for each in adjustments),
        issued_at_us=epoch_us(document["issued_at"]),
        sha256=envelope["sha256"],
        kid=envelope["signature"]["kid"],
        algorithm=envelope["signature"]["alg"],
        signature=envelope["signature"]["value"],
        fault=_receipt_fault(envelope, keys),
    )


def _line(line: Mapping[str, str]) -> LineView:
    return LineView(
        component=line["component"],
        detail=line["detail"],
        quantity=line["quantity"],
        unit=line["unit"],
        unit_price=line["unit_price"],
        amount_nano=parse_nano(line["amount"]),
    )


def _adjustment(
    signed: Mapping[str, Any], receipt_sha256: str, keys: Mapping[str, Any]
) -> AdjustmentView:
    document = signed["adjustment"]
    fault = None
    try:
        verified = receipts.verify_adjustment(signed, keys)
        if verified.receipt_sha256 != receipt_sha256:
            fault = "cites another receipt"
    except InvalidReceipt as error:
        fault = str(error)
    return AdjustmentView(
        reason=document["reason"],
        joules=(document.get("energy") or {}).get("joules"),
        amount_nano=parse_nano(document["amount"]),
        issued_at_us=epoch_us(document["issued_at"]),
        fault=fault,
    )


def _receipt_fault(envelope: Mapping[str, Any], keys: Mapping[str, Any]) -> str | None:
    try:
        receipts.verify(envelope, keys)
    except InvalidReceipt as error:
        return str(error)
    return None


def _file(content: Mapping[str, Any], name: str) -> Response[bytes]:
    return Response(
        json.dumps(content, indent=1).encode(),
        media_type=MediaType.JSON,
        headers={"Content-Disposition": f'attachment; filename="{name}"'},
    )


HANDLERS = (list_receipts, show_receipt, signed_receipt, public_keys)
