"""Review items as they stand: what is to be looked at, by whom, and what was found."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum

from sqlalchemy import Connection, RowMapping, select, tuple_

from billing.errors import ReviewItemNotFound
from billing.tables import review_items


class ReviewState(StrEnum):
    """Where an item stands; the last two are final."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    RESOLVED = "resolved"
    LAPSED = "lapsed"


class Verdict(StrEnum):
    """What a reviewer found."""

    APPROVE = "approve"
    EDIT = "edit"
    REJECT = "reject"


OPEN_STATES = frozenset({ReviewState.QUEUED, ReviewState.CLAIMED})


@dataclass(frozen=True, slots=True)
class ReviewItem:
    """One output to be looked at."""

    id: str
    request_id: str
    tenant_id: str
    rule_version: str
    reason: str
    geo_mean: str | None
    fee_nano: int
    currency: str
    state: ReviewState
    claimed_by: str | None
    claim_token: int
    claim_expires_at_us: int | None
    verdict: Verdict | None
    note: str | None
    edited_output: str | None
    resolved_by: str | None
    queued_at_us: int
    due_at_us: int
    resolved_at_us: int | None


def item(connection: Connection, item_id: str) -> ReviewItem:
    """One item; raises ReviewItemNotFound."""
    row = connection.execute(select(review_items).where(review_items.c.id == item_id)).one_or_none()
    if row is None:
        raise ReviewItemNotFound(f"no review item {item_id!r}")
    return _from_row(row._mapping)


def items(
    connection: Connection,
    state: ReviewState,
    limit: int,
    cursor: tuple[int, str] | None = None,
) -> list[ReviewItem]:
    """Items in one state: the open ones oldest first, the final ones newest first.

    `cursor` is the last item's `(queued_at_us, id)`, exclusive.
    """
    position = tuple_(review_items.c.queued_at_us, review_items.c.id)
    query = select(review_items).where(review_items.c.state == state).limit(limit)
    if state in OPEN_STATES:
        query = query.order_by(review_items.c.queued_at_us, review_items.c.id)
        if cursor is not None:
            query = query.where(position > cursor)
    else:
        query = query.order_by(review_items.c.queued_at_us.desc(), review_items.c.id.desc())
        if cursor is not None:
            query = query.where(position < cursor)
    return [_from_row(row) for row in connection.execute(query).mappings()]


def _from_row(row: RowMapping) -> ReviewItem:
    values = dict(row)
    values["state"] = ReviewState(values["state"])
    values["verdict"] = values["verdict"] and Verdict(values["verdict"])
    return ReviewItem(**{field.name: values[field.name] for field in fields(ReviewItem)})
