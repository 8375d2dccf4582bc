"""Comparing a request's rated lines and its receipt with what they were made from. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from billing import rating, receipts
from billing.catalogue import TariffVersion
from billing.differences import Figure
from billing.errors import BillingError, InvalidReceipt
from billing.money import format_nano, plain
from billing.rating import Component, Line
from billing.receipt_documents import receipt_document
from billing.request_evidence import Evidence
from billing.settlement import TEST_MODE
from billing.signing import ALGORITHM
from engine.records import EngineInfo


def rated(evidence: Evidence, version: Callable[[str], TariffVersion]) -> Iterator[Figure]:
    """The figures of a request's rated lines, and what its receipt says of what was rated.

    The request must have a summary.
    """
    summary = evidence.summary
    assert summary is not None
    pinned = evidence.request.tariff_version_id
    yield "summary tariff = request", pinned, summary.tariff_version_id
    stored = [line for line in evidence.lines if line.component != Component.WRITE_OFF]
    reviewed = any(line.component == Component.REVIEW for line in stored)
    try:
        tariff = version(pinned)
        charge = (
            rating.waive(TEST_MODE)
            if evidence.request.test_mode
            else rating.rate(summary, tariff.document, review_fee=reviewed)
        )
    except BillingError as error:
        yield "rated lines = summary under its tariff", "a charge", str(error)
        return
    of = {(row.tenant_id, row.tariff_version_id, row.currency, row.event_time_us) for row in stored}
    asked = (evidence.request.tenant_id, pinned, tariff.currency, summary.ended_at_us)
    yield "rated lines are of the request", {asked}, of
    numbers = [row.line for row in evidence.lines]
    yield "rated lines are without gaps", list(range(len(numbers))), numbers
    if evidence.receipt is not None:
        yield from _document(evidence, tariff)
    expected = [
        (
            line.component.value,
            line.detail,
            plain(line.quantity),
            line.unit,
            plain(line.unit_price),
            line.amount_nano,
        )
        for line in charge.lines
    ]
    actual = [
        (
            line.component,
            line.detail,
            line.quantity,
            line.unit,
            line.unit_price,
            line.amount_nano,
        )
        for line in stored
    ]
    yield "rated lines = summary under its tariff", expected, actual


def _document(evidence: Evidence, tariff: TariffVersion) -> Iterator[Figure]:
    """What was signed, beside what is stored: the summary, the lines and the request's row."""
    request, summary, row = evidence.request, evidence.summary, evidence.receipt
    assert summary is not None
    assert row is not None
    engine = request.engine and msgspec.json.decode(request.engine, type=EngineInfo)
    lines = [
        Line(
            Component(line.component),
            line.detail,
            Decimal(line.quantity),
            line.unit,
            Decimal(line.unit_price),
            line.amount_nano,
        )
        for line in evidence.lines
    ]
    stored = receipt_document(
        summary,
        tariff,
        lines,
        engine=engine,
        review=None,
        parameters=json.loads(request.parameters),
        salt=request.content_salt,
        test_mode=request.test_mode,
        issued_at_us=row.created_at_us,
    )
    signed = json.loads(row.document)
    unknown = {"review"}
    if request.prompt is None:
        unknown |= {"schema", "parameters"}  # with the content went what their hashes are of
    if engine is None:
        unknown |= {"engine", "model"}
    is_reviewed = signed.get("review") is not None
    yield "a review is queued = receipt", is_reviewed, evidence.review is not None
    for name in stored.keys() & signed.keys() - unknown:
        # Whatever parameters a request had were signed ever since any were.
        said = stored[name] if name == "parameters" else _said(stored[name], signed[name])
        yield f"receipt's {name} = what is stored", said, signed[name]
    yield "receipt's currency = its document", signed["currency"], row.currency


def _said(stored: object, signed: object) -> object:
    """As much of what is stored as was signed: documents of earlier versions say less.

    What was signed can't be taken away again, for then the signature fails.
    """
    if isinstance(stored, dict) and isinstance(signed, dict):
        return {name: _said(stored[name], signed[name]) for name in stored if name in signed}
    if isinstance(stored, list) and isinstance(signed, list) and len(stored) == len(signed):
        return [_said(*pair) for pair in zip(stored, signed, strict=True)]
    return stored


def receipt(evidence: Evidence, public_keys: Mapping[str, Any]) -> Iterator[Figure]:
    """The figures of a request's receipt and its adjustments: their signatures, and the money.

    The request must have a receipt.
    """
    signed = evidence.receipt
    assert signed is not None
    document = json.loads(signed.document)
    fault = _fault(receipts.verify, "receipt", signed, public_keys)
    yield "receipt verifies", None, fault
    yield "receipt's tenant = request", evidence.request.tenant_id, signed.tenant_id
    total = sum(line.amount_nano for line in evidence.lines)
    yield "receipt total = rated lines", total, signed.total_nano
    if evidence.summary is not None:
        tokens = document["output"]["output_tokens"]
        yield "receipt output tokens = summary", evidence.summary.output_tokens, tokens
    yield "tenant's payments = receipt total", signed.total_nano, evidence.paid_nano
    charged = {row.event_time_us for row in evidence.charges}
    yield "charges are of the request's end", charged & {evidence.request.ended_at_us}, charged
    given_up = -sum(
        line.amount_nano for line in evidence.lines if line.component == Component.WRITE_OFF
    )
    written_off = sum(row.amount_nano for row in evidence.transfers if row.kind == "write_off")
    yield "write-off transfers = write-off lines", given_up, written_off
    for adjustment in evidence.adjustments:
        fault = _fault(receipts.verify_adjustment, "adjustment", adjustment, public_keys)
        yield "adjustment verifies", None, fault
        yield "adjustment cites the receipt", signed.sha256, adjustment.receipt_sha256
        row = (
            adjustment.id,
            adjustment.request_id,
            adjustment.tenant_id,
            adjustment.receipt_sha256,
        )
        said = json.loads(adjustment.document)
        stated = tuple(said[name] for name in ("id", "request_id", "tenant_id", "receipt_sha256"))
        yield "adjustment's row = its document", stated, row
        amount = format_nano(adjustment.amount_nano)
        yield "adjustment's amount = its document", said["amount"], amount


def _fault(
    verify: Callable[[Mapping[str, Any], Mapping[str, Any]], object],
    name: str,
    row: Any,
    public_keys: Mapping[str, Any],
) -> str | None:
    signature = {"kid": row.kid, "alg": ALGORITHM, "value": row.signature}
    envelope = {name: json.loads(row.document), "signature": signature, "sha256": row.sha256}
    try:
        verify(envelope, public_keys)
    except InvalidReceipt as error:
        return f"{error.reason}: {error}"
    return None
