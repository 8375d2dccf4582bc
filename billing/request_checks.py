"""Comparing what is stored about one request, step by step from events to receipt. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from billing import rating, receipts
from billing.catalogue import TariffVersion
from billing.differences import Difference
from billing.errors import BillingError, InvalidReceipt
from billing.ledger.holds import HoldState
from billing.money import plain
from billing.rating import Component
from billing.request_evidence import Evidence
from billing.review_items import OPEN_STATES
from billing.settlement import TEST_MODE
from billing.signing import ALGORITHM
from metering import bodies
from metering import requests as request_rows
from metering.bodies import EnergyBody, TerminalBody
from metering.events import FINAL_STATUSES, EnergyClass
from metering.ingestion.outside import ROUTE as OUTSIDE

# What a tenant pays from, and what goes back to it.
MEANS = frozenset({"tenant_credit", "promotional", "accrued"})


def check(
    evidence: Evidence,
    version: Callable[[str], TariffVersion],
    public_keys: Mapping[str, Any],
) -> Iterator[Difference]:
    """Every difference in what is stored about one request."""
    final = evidence.request.status in FINAL_STATUSES
    figures = [*_events(evidence), *_ledger(evidence)]
    figures += _final(evidence, version, public_keys) if final else _live(evidence)
    for name, expected, actual in figures:
        if expected != actual:
            yield Difference(name, evidence.request.id, str(expected), str(actual))


def paid_nano(evidence: Evidence) -> int:
    """What the ledger says that the request cost its tenant, before any refund."""
    return _net(evidence, into={"earnings", "review_pool"}, kinds={"charge", "review_fee"})


Figure = tuple[str, object, object]


def _events(evidence: Evidence) -> Iterator[Figure]:
    blocks = bodies.blocks(evidence.events)
    indexes = [block.block_index for block in blocks]
    yield "block events are without gaps", list(range(len(blocks))), indexes


def _live(evidence: Evidence) -> Iterator[Figure]:
    ended = any(isinstance(event, TerminalBody) for event in evidence.events)
    state = evidence.hold.state if evidence.hold is not None else None
    yield "a live request has no terminal event", False, ended
    yield "a live request has no summary", None, evidence.summary
    yield "a live request has no receipt", None, evidence.receipt
    yield "a live request has a hold", True, state in {HoldState.PENDING, HoldState.EXPIRED}


def _final(
    evidence: Evidence,
    version: Callable[[str], TariffVersion],
    public_keys: Mapping[str, Any],
) -> Iterator[Figure]:
    outside = evidence.request.route == OUTSIDE
    if outside:
        yield "an outside request has no hold", None, evidence.hold
    else:
        terminal = [event for event in evidence.events if isinstance(event, TerminalBody)]
        yield "a final request has one terminal event", 1, len(terminal)
        state = evidence.hold.state if evidence.hold is not None else None
        yield "a final request's hold is resolved", False, state in {None, HoldState.PENDING}
    yield "a final request has a summary", True, evidence.summary is not None
    yield "a final request has a receipt", True, evidence.receipt is not None
    if evidence.summary is not None:
        if not outside:
            yield from _summary(evidence)
        yield from _rated(evidence, version)
    if evidence.receipt is not None:
        yield from _receipt(evidence, public_keys)


def _summary(evidence: Evidence) -> Iterator[Figure]:
    summary = evidence.summary
    assert summary is not None
    blocks, tokens, accepted = evidence.stated_blocks()
    yield "summary output tokens = events", tokens, summary.output_tokens
    yield "summary blocks = events", blocks, summary.blocks
    yield "summary accepted tokens = events", accepted, summary.drafting.accepted_tokens
    yield "summary status = request", evidence.request.status, summary.status
    reason = evidence.request.finish_reason
    yield "summary finish reason = request", reason, summary.finish_reason
    row = request_rows.summary_row(summary)
    stored = {name: getattr(evidence.summarised, name) for name in row}
    yield "summary's columns = summary", _but_body(row), _but_body(stored)
    for terminal in evidence.events:
        if isinstance(terminal, TerminalBody):
            yield "terminal tokens = events", tokens, terminal.tokens
            yield "terminal blocks = events", blocks, terminal.blocks
            yield "summary output hash = events", terminal.output_sha256, summary.output_sha256
    if summary.energy.energy_class is not EnergyClass.UNAVAILABLE:
        joules = [event for event in evidence.events if isinstance(event, EnergyBody)]
        settled = sum(event.energy_uj or 0 for event in joules)
        yield "summary energy = events", settled, summary.energy.energy_uj
        classes = {event.energy_class for event in joules} or {summary.energy.energy_class}
        yield "summary energy class = events", classes, {summary.energy.energy_class}


def _but_body(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "body"}


def _rated(evidence: Evidence, version: Callable[[str], TariffVersion]) -> Iterator[Figure]:
    summary = evidence.summary
    assert summary is not None
    pinned = evidence.request.tariff_version_id
    yield "summary tariff = request", pinned, summary.tariff_version_id
    stored = [line for line in evidence.lines if line.component != Component.WRITE_OFF]
    reviewed = any(line.component == Component.REVIEW for line in stored)
    try:
        charge = (
            rating.waive(TEST_MODE)
            if evidence.request.test_mode
            else rating.rate(summary, version(pinned).document, review_fee=reviewed)
        )
    except BillingError as error:
        yield "rated lines = summary under its tariff", "a charge", str(error)
        return
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


def _receipt(evidence: Evidence, public_keys: Mapping[str, Any]) -> Iterator[Figure]:
    receipt = evidence.receipt
    assert receipt is not None
    document = json.loads(receipt.document)
    fault = _fault(receipts.verify, "receipt", receipt, public_keys)
    yield "receipt verifies", None, fault
    yield "receipt's tenant = request", evidence.request.tenant_id, receipt.tenant_id
    total = sum(line.amount_nano for line in evidence.lines)
    yield "receipt total = rated lines", total, receipt.total_nano
    if evidence.summary is not None:
        tokens = document["output"]["output_tokens"]
        yield "receipt output tokens = summary", evidence.summary.output_tokens, tokens
    yield "tenant's payments = receipt total", receipt.total_nano, paid_nano(evidence)
    given_up = -sum(
        line.amount_nano for line in evidence.lines if line.component == Component.WRITE_OFF
    )
    written_off = sum(row.amount_nano for row in evidence.transfers if row.kind == "write_off")
    yield "write-off transfers = write-off lines", given_up, written_off
    for adjustment in evidence.adjustments:
        fault = _fault(receipts.verify_adjustment, "adjustment", adjustment, public_keys)
        yield "adjustment verifies", None, fault
        yield "adjustment cites the receipt", receipt.sha256, adjustment.receipt_sha256


def _ledger(evidence: Evidence) -> Iterator[Figure]:
    hold = evidence.hold
    held = _net(evidence, into={"holds"})
    pending = hold is not None and hold.state == HoldState.PENDING
    yield "held transfers = hold", hold.amount_nano if hold is not None and pending else 0, held
    adjusted = sum(adjustment.amount_nano for adjustment in evidence.adjustments)
    returned = sum(
        row.amount_nano
        for row in evidence.transfers
        if row.kind in {"refund", "review_lapse"} and row.credit_kind in MEANS
    )
    yield "refund transfers = adjustments", -adjusted, returned
    funded = sum(row.amount_nano for row in evidence.fundings)
    yield "fundings = what the tenant's means gave", _net(evidence, into=MEANS), -funded
    item = evidence.review
    waiting = item.fee_nano if item is not None and item.state in OPEN_STATES else 0
    yield "review pool = open review's fee", waiting, _net(evidence, into={"review_pool"})
    due = item.fee_nano if item is not None and item.state == "resolved" else 0
    yield "reviewer payable = resolved fee", due, _net(evidence, into={"reviewer_payable"})


def _net(evidence: Evidence, *, into: Collection[str], kinds: set[str] | None = None) -> int:
    """What arrived at accounts of these kinds, less what left them.

    With `kinds`, only transfers of these kinds that a tenant's money paid.
    """
    net = 0
    for row in evidence.transfers:
        if kinds is not None and (row.kind not in kinds or row.debit_kind not in {"holds", *MEANS}):
            continue
        net += row.amount_nano * ((row.credit_kind in into) - (row.debit_kind in into))
    return net


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
