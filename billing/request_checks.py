"""Comparing what is stored about one request, step by step from events to receipt. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from billing import receipt_checks, review_checks, summary_checks
from billing.catalogue import TariffVersion
from billing.differences import Difference, Figure, as_far_as_readable, unreadable
from billing.ledger.holds import HoldState
from billing.request_evidence import MEANS, Evidence, net_nano
from billing.review_items import OPEN_STATES
from metering import bodies, canonical_json
from metering.bodies import SOURCE, EnergyBody, TerminalBody
from metering.events import FINAL_STATUSES, EventKind
from metering.ingestion.outside import ROUTE as OUTSIDE


def check(
    evidence: Evidence,
    version: Callable[[str], TariffVersion],
    public_keys: Mapping[str, Any],
) -> Iterator[Difference]:
    """Every difference in what is stored about one request.

    Where an event or the summary can't be read, that is named, and only the ledger is compared
    besides: all else would differ for that alone.
    """
    request_id = evidence.request.id
    yield from as_far_as_readable(request_id, _unlike(request_id, _ledger(evidence)))
    if evidence.unreadable:
        yield from (unreadable(request_id, fault) for fault in evidence.unreadable)
        return
    figures = _figures(evidence, version, public_keys)
    yield from as_far_as_readable(request_id, _unlike(request_id, figures))


def _unlike(request_id: str, figures: Iterable[Figure]) -> Iterator[Difference]:
    for name, expected, actual in figures:
        if expected != actual:
            yield Difference(name, request_id, str(expected), str(actual))


def _figures(
    evidence: Evidence,
    version: Callable[[str], TariffVersion],
    public_keys: Mapping[str, Any],
) -> Iterator[Figure]:
    yield from _events(evidence)
    if evidence.request.status in FINAL_STATUSES:
        yield from _final(evidence, version, public_keys)
    else:
        yield from _live(evidence)
    yield from review_checks.check(evidence)


def _events(evidence: Evidence) -> Iterator[Figure]:
    blocks = bodies.blocks(evidence.events)
    indexes = [block.block_index for block in blocks]
    yield "block events are without gaps", list(range(len(blocks))), indexes
    settled = [event.index for event in evidence.events if isinstance(event, EnergyBody)]
    yield "energy events are without gaps", list(range(len(settled))), settled
    others = {event.request_id for event in evidence.events} - {evidence.request.id}
    yield "events are of their request", set(), others
    hashes = [(canonical_json.sha256(row.body), row.body_sha256) for row, _ in evidence.stated]
    yield "event hashes = bodies", *_unequal(hashes)
    ends = {row.event_time_us for row, _ in evidence.stated if row.kind == EventKind.TERMINAL}
    yield "the terminal event's time = request", ends & {evidence.request.ended_at_us}, ends
    identities = [
        (
            (evidence.request.tenant_id, SOURCE, identity.id, identity.kind.value, identity.index),
            (row.tenant_id, row.source, row.id, row.kind, row.index),
        )
        for row, facts in evidence.stated
        for identity in (bodies.identity_of(facts),)
    ]
    yield "event identities = bodies", *_unequal(identities)


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
            yield from summary_checks.check(evidence)
        yield from receipt_checks.rated(evidence, version)
    if evidence.receipt is not None:
        yield from receipt_checks.receipt(evidence, public_keys)


def _ledger(evidence: Evidence) -> Iterator[Figure]:
    hold = evidence.hold
    held = net_nano(evidence.transfers, into={"holds"})
    pending = hold is not None and hold.state == HoldState.PENDING
    yield "held transfers = hold", hold.amount_nano if hold is not None and pending else 0, held
    if hold is not None:
        owner = (evidence.request.tenant_id, evidence.request.max_cost_nano)
        yield "hold is of the request", owner, (hold.tenant_id, hold.ceiling_nano)
    if hold is not None and hold.state in {HoldState.POSTED, HoldState.VOIDED}:
        reserved = sum(row.amount_nano for row in evidence.transfers if row.credit_kind == "holds")
        spent = sum(
            row.amount_nano
            for row in evidence.transfers
            if row.debit_kind == "holds" and row.kind in {"charge", "review_fee"}
        )
        stated = (hold.amount_nano, hold.posted_nano)
        yield "hold's amounts = transfers", (reserved, spent), stated
    currencies = {row.currency for row in (*evidence.transfers, *evidence.lines)}
    currencies |= set() if hold is None else {hold.currency}
    yield "all amounts are in one currency", currencies, set(sorted(currencies)[:1])
    yield (
        "holds are drawn by holding",
        *_unequal(
            [
                ((row.kind == "hold", row.kind == "release"), (into, out))
                for row in evidence.transfers
                for into in (row.credit_kind == "holds",)
                for out in (row.debit_kind == "holds" and row.credit_kind in MEANS,)
            ]
        ),
    )
    adjusted = sum(adjustment.amount_nano for adjustment in evidence.adjustments)
    returned = sum(
        row.amount_nano
        for row in evidence.transfers
        if row.kind in {"refund", "review_lapse"} and row.credit_kind in MEANS
    )
    yield "refund transfers = adjustments", -adjusted, returned
    funded = sum(row.amount_nano for row in evidence.fundings)
    yield (
        "fundings = what the tenant's means gave",
        net_nano(evidence.transfers, into=MEANS),
        -funded,
    )
    item = evidence.review
    waiting = item.fee_nano if item is not None and item.state in OPEN_STATES else 0
    yield (
        "review pool = open review's fee",
        waiting,
        net_nano(evidence.transfers, into={"review_pool"}),
    )
    due = item.fee_nano if item is not None and item.state == "resolved" else 0
    yield (
        "reviewer payable = resolved fee",
        due,
        net_nano(evidence.transfers, into={"reviewer_payable"}),
    )


def _unequal(pairs: Sequence[tuple[object, object]]) -> tuple[list[object], list[object]]:
    """The expected and the actual of those that differ."""
    unequal = [pair for pair in pairs if pair[0] != pair[1]]
    return [expected for expected, _ in unequal], [actual for _, actual in unequal]
