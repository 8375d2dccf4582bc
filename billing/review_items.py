"""Review items as they stand: what is to be looked at, by whom, and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, select, tuple_

from billing.errors import ReviewItemNotFound
from billing.tables import review_items
from metering.prepared import Prepared
from metering.review_rule import AUDIT


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


class Reason(StrEnum):
    """What is wrong with an output."""

    INCORRECT = "incorrect"
    INCOMPLETE = "incomplete"
    OFF_TOPIC = "off_topic"
    UNSAFE = "unsafe"
    FORMAT = "format"
    STYLE = "style"
    OTHER = "other"  # the note says what


class Delivery(StrEnum):
    """When a tenant gets an answer that is to be reviewed."""

    NOW = "now"
    HELD = "held"  # until the verdict, or until nobody gave one in time


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
    paid_by: str = "operator"  # or "tenant"
    delivery: Delivery = Delivery.NOW
    opinions_wanted: int = 1
    opinions: int = 0  # given so far
    reasons: tuple[Reason, ...] = ()
    calibrated: str | None = None
    calibration: str | None = None  # the version that `calibrated` is of
    inclusion_ppm: int | None = None  # how likely it was to be queued; null: not recorded
    sampled: bool = False  # by the audit, whatever its score

    @property
    def is_open(self) -> bool:
        """Whether a verdict is still to come."""
        return self.state in OPEN_STATES

    @property
    def concerns_tenant(self) -> bool:
        """Whether its tenant is told of it: a sample of our own only once it changed something."""
        return self.reason != AUDIT or self.verdict in {Verdict.EDIT, Verdict.REJECT}

    @property
    def withholds(self) -> bool:
        """Whether its answer is kept from the tenant: until the verdict, and after a rejection."""
        if self.delivery is not Delivery.HELD:
            return False
        return self.is_open or self.verdict is Verdict.REJECT


def item(connection: Connection, item_id: str) -> ReviewItem:
    """One item; raises ReviewItemNotFound."""
    row = connection.execute(select(review_items).where(review_items.c.id == item_id)).one_or_none()
    if row is None:
        raise ReviewItemNotFound(f"no review item {item_id!r}")
    return from_row(row._mapping)


_OF_REQUEST = Prepared(
    select(review_items).where(review_items.c.request_id == bindparam("request_id"))
)


def of_request(connection: Connection, request_id: str) -> ReviewItem | None:
    """A request's item, or null: nobody reviews it."""
    row = _OF_REQUEST.row(connection, {"request_id": request_id})
    return None if row is None else from_row(row._asdict())


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
    return [from_row(row) for row in connection.execute(query).mappings()]


def from_row(row: Mapping[Any, Any]) -> ReviewItem:
    """An item from its row."""
    values = dict(row)
    values["state"] = ReviewState(values["state"])
    values["verdict"] = values["verdict"] and Verdict(values["verdict"])
    values["delivery"] = Delivery(values["delivery"])
    values["reasons"] = tuple(map(Reason, msgspec.json.decode(values["reasons"] or "[]")))
    return ReviewItem(**{field.name: values[field.name] for field in fields(ReviewItem)})
