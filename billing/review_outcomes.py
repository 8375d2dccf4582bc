"""What a tenant learns of a review of its answer, and whether the answer is kept from it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from billing.review_items import Delivery, Reason, ReviewState, Verdict, of_request


@dataclass(frozen=True, slots=True)
class ReviewOutcome:
    """A review as its tenant sees it: neither who looked at it nor what they noted for each other.

    `withheld` says that the answer is kept back: held until the verdict, or rejected after it.
    """

    item_id: str
    reason: str
    state: ReviewState
    delivery: Delivery
    withheld: bool
    verdict: Verdict | None
    reasons: tuple[Reason, ...]
    corrected_output: str | None
    queued_at_us: int
    due_at_us: int
    resolved_at_us: int | None


def outcome(connection: Connection, request_id: str) -> ReviewOutcome | None:
    """What became of a request's review, or null: nobody reviews it at the tenant's wish.

    Samples of our own are not told of before they changed something.
    """
    item = of_request(connection, request_id)
    if item is None or not item.concerns_tenant:
        return None
    return ReviewOutcome(
        item_id=item.id,
        reason=item.reason,
        state=ReviewState.QUEUED if item.is_open else item.state,
        delivery=item.delivery,
        withheld=item.withholds,
        verdict=item.verdict,
        reasons=item.reasons,
        corrected_output=item.edited_output,
        queued_at_us=item.queued_at_us,
        due_at_us=item.due_at_us,
        resolved_at_us=item.resolved_at_us,
    )
