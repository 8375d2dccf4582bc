"""Everything that is stored about a request, gathered to be compared. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Column, Connection, Row, Select, select

from billing.credit_tables import fundings
from billing.differences import UNREADABLE, why
from billing.retention_tables import compactions
from billing.review_tables import review_opinions
from billing.tables import (
    accounts,
    adjustments,
    holds,
    rated_lines,
    receipts,
    review_items,
    transfers,
)
from metering import bodies
from metering.bodies import Fact
from metering.events import EventKind, RequestSummary
from metering.tables import request_summaries, requests, usage_events

PAGE = 200

# What a tenant pays from, and what goes back to it.
MEANS = frozenset({"tenant_credit", "promotional", "accrued"})

Rows = tuple[Row[*tuple[Any, ...]], ...]
OneRow = Row[*tuple[Any, ...]]


class StatedEvent(NamedTuple):
    """One event as it is stored, and what its body states."""

    row: OneRow
    facts: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the database holds about one request, from the engine's events to the receipt."""

    request: OneRow
    stated: tuple[StatedEvent, ...]
    summary: RequestSummary | None
    summarised: OneRow | None  # its row, whose columns are added up
    lines: Rows
    transfers: Rows  # each with the kinds of its accounts, as `debit_kind` and `credit_kind`
    hold: OneRow | None
    fundings: Rows
    compaction: OneRow | None  # of its blocks, once they are gone
    receipt: OneRow | None
    adjustments: Rows
    review: OneRow | None
    opinions: Rows  # on that review, in order
    unreadable: tuple[str, ...]  # events, or the summary, that are left out, and why

    @property
    def events(self) -> tuple[Fact, ...]:
        """What its events state, in order."""
        return tuple(fact for event in self.stated for fact in event.facts)

    def stated_blocks(self) -> tuple[int, int, int]:
        """Blocks, tokens and accepted tokens, as block events state them or their compaction."""
        if self.compaction is not None:
            row = self.compaction
            return row.blocks, row.tokens, row.accepted_tokens
        blocks = bodies.blocks(self.events)
        tokens = sum(len(block.token_ids) for block in blocks)
        return len(blocks), tokens, sum(block.accepted_tokens for block in blocks)

    @property
    def charges(self) -> Rows:
        """The transfers by which the tenant's money paid for the request."""
        return tuple(
            row
            for row in self.transfers
            if row.kind in {"charge", "review_fee"} and row.debit_kind in {"holds", *MEANS}
        )

    @property
    def paid_nano(self) -> int:
        """What the ledger says that the request cost its tenant, before any refund."""
        return net_nano(self.charges, into={"earnings", "review_pool"})


def net_nano(moved: Rows, into: Collection[str]) -> int:
    """What arrived at accounts of these kinds, less what left them."""
    return sum(
        row.amount_nano * ((row.credit_kind in into) - (row.debit_kind in into)) for row in moved
    )


def gather(connection: Connection, tenant_id: str | None = None) -> Iterator[Evidence]:
    """The evidence of every request, or of one tenant's, by id, a page at a time."""
    query = select(requests).order_by(requests.c.id).limit(PAGE)
    if tenant_id is not None:
        query = query.where(requests.c.tenant_id == tenant_id)
    last = ""
    while page := connection.execute(query.where(requests.c.id > last)).all():
        yield from _page(connection, page)
        last = page[-1].id


def of_request(connection: Connection, request_id: str) -> Evidence | None:
    """The evidence of one request; null if there is no such request."""
    page = connection.execute(select(requests).where(requests.c.id == request_id)).all()
    return next(_page(connection, page), None)


def _page(connection: Connection, page: Sequence[OneRow]) -> Iterator[Evidence]:
    ids = [request.id for request in page]

    def rows(query: Select[*tuple[Any, ...]], owner: Column[str]) -> dict[str, Rows]:
        found: defaultdict[str, Rows] = defaultdict(tuple)
        for row in connection.execute(query.where(owner.in_(ids))):
            found[row.request_id] += (row,)
        return found

    events = rows(select(usage_events).order_by(usage_events.c.seq), usage_events.c.request_id)
    summaries = rows(select(request_summaries), request_summaries.c.request_id)
    lines = rows(select(rated_lines).order_by(rated_lines.c.line), rated_lines.c.request_id)
    held = rows(select(holds), holds.c.request_id)
    compacted = rows(select(compactions), compactions.c.request_id)
    funded = rows(select(fundings), fundings.c.request_id)
    signed = rows(select(receipts), receipts.c.request_id)
    adjusted = rows(select(adjustments), adjustments.c.request_id)
    reviews = rows(select(review_items), review_items.c.request_id)
    given = rows(
        select(review_opinions, review_items.c.request_id)
        .join(review_items, review_items.c.id == review_opinions.c.item_id)
        .order_by(review_opinions.c.number),
        review_items.c.request_id,
    )
    debited, credited = accounts.alias("debited"), accounts.alias("credited")
    moved = rows(
        select(
            transfers,
            debited.c.kind.label("debit_kind"),
            credited.c.kind.label("credit_kind"),
        )
        .join(debited, debited.c.id == transfers.c.debit_account_id)
        .join(credited, credited.c.id == transfers.c.credit_account_id),
        transfers.c.request_id,
    )
    for request in page:
        faults: list[str] = []
        summarised = next(iter(summaries[request.id]), None)
        yield Evidence(
            request=request,
            stated=tuple(_stated(events[request.id], faults)),
            summary=None if summarised is None else _summary(summarised, faults),
            summarised=summarised,
            lines=lines[request.id],
            transfers=moved[request.id],
            hold=next(iter(held[request.id]), None),
            fundings=funded[request.id],
            compaction=next(iter(compacted[request.id]), None),
            receipt=next(iter(signed[request.id]), None),
            adjustments=adjusted[request.id],
            review=next(iter(reviews[request.id]), None),
            opinions=given[request.id],
            unreadable=tuple(faults),
        )


def _stated(events: Rows, faults: list[str]) -> Iterator[StatedEvent]:
    for event in events:
        try:
            facts = tuple(bodies.read(EventKind(event.kind), event.body))
        except UNREADABLE as error:
            faults.append(f"event {event.id}: {why(error)}")
        else:
            yield StatedEvent(event, facts)


def _summary(summarised: OneRow, faults: list[str]) -> RequestSummary | None:
    try:
        return msgspec.json.decode(summarised.body, type=RequestSummary)
    except UNREADABLE as error:
        faults.append(f"summary: {why(error)}")
        return None
