"""The wire of `/review`: items, claims and verdicts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from api.schemas import to_time, to_time_or_null
from billing.money import format_nano
from billing.review import ReviewItem, ReviewState, Verdict

Note = Annotated[str, Meta(max_length=10_000, description="Why; kept with the item")]
EditedOutput = Annotated[
    str, Meta(max_length=1_000_000, description="The corrected output; with the verdict `edit`")
]


class ReviewItemView(msgspec.Struct, frozen=True):
    """One output to be looked at, without its text. `geo_mean` is null where a score is missing."""

    id: str
    request_id: str
    tenant_id: str
    reason: str
    geo_mean: str | None
    fee: str
    currency: str
    state: ReviewState
    claimed_by: str | None
    claim_expires_at: datetime | None
    verdict: Verdict | None
    note: str | None
    resolved_by: str | None
    queued_at: datetime
    due_at: datetime
    resolved_at: datetime | None

    @classmethod
    def of(cls, item: ReviewItem) -> ReviewItemView:
        """The wire's view of an item."""
        return cls(
            id=item.id,
            request_id=item.request_id,
            tenant_id=item.tenant_id,
            reason=item.reason,
            geo_mean=item.geo_mean,
            fee=format_nano(item.fee_nano),
            currency=item.currency,
            state=item.state,
            claimed_by=item.claimed_by,
            claim_expires_at=to_time_or_null(item.claim_expires_at_us),
            verdict=item.verdict,
            note=item.note,
            resolved_by=item.resolved_by,
            queued_at=to_time(item.queued_at_us),
            due_at=to_time(item.due_at_us),
            resolved_at=to_time_or_null(item.resolved_at_us),
        )


class ReviewPage(msgspec.Struct, frozen=True):
    """Items of one state: open ones oldest first, final ones newest first."""

    items: list[ReviewItemView]
    next_cursor: str | None


class ReviewDetail(msgspec.Struct, frozen=True):
    """An item with what was asked and answered; null once erased."""

    item: ReviewItemView
    prompt: Any
    output: str | None
    edited_output: str | None


class ClaimView(msgspec.Struct, frozen=True):
    """A claim: who resolves the item has to show its token before the lease ends."""

    item: ReviewItemView
    token: int


class VerdictRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The verdict on a claimed item."""

    token: Annotated[int, Meta(ge=0, le=2**31 - 1, description="The claim's token")]
    verdict: Verdict
    note: Note | None = None
    edited_output: EditedOutput | None = None
