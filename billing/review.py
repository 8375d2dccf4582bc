"""Human review of doubtful outputs: a queue, claims with a lease, opinions and verdicts.

queued -> claimed -> resolved, or back to queued while another opinion is wanted, or lapsed when
nobody gave one in time. A claim carries a token that grows with every claim, so that a reviewer
whose lease ran out and whose item went to another can't resolve it any more. Every outcome is a
signed adjustment of the request's receipt.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, exists, or_, select, update

from billing import review_fees, review_opinions
from billing.errors import InvalidVerdict, ReviewConflict
from billing.ledger.accounts import lock_tenant
from billing.review_endings import RULE_VERSION, conclude, lapse, next_due
from billing.review_items import (
    OPEN_STATES,
    Reason,
    ReviewItem,
    ReviewState,
    Verdict,
    item,
    items,
    of_request,
)
from billing.review_opinions import Opinion
from billing.review_orders import ReviewOrder
from billing.review_tables import review_opinions as opinions_table
from billing.rows import insert_once
from billing.signing import Signer
from billing.tables import review_items
from metering import clock
from metering.events import RequestSummary

__all__ = [
    "OPEN_STATES",
    "ReviewItem",
    "ReviewState",
    "Verdict",
    "claim",
    "item",
    "items",
    "lapse",
    "next_due",
    "of_request",
    "queue",
    "resolve",
]

SLA_US = 24 * 3600 * 10**6
LEASE_US = 15 * 60 * 10**6


def queue(
    connection: Connection,
    order: ReviewOrder,
    summary: RequestSummary,
    *,
    currency: str,
    sla_us: int = SLA_US,
    second_opinion_rate: float = 0.0,
) -> str:
    """Queue an output for review, and return the item's id. Once per request and rule.

    A tenant's fee is in the pool already, moved there by the settlement; the operator's is taken
    from what was earned with this tenant.
    """
    request_id, tenant_id = summary.request_id, summary.tenant_id
    if not order.by_tenant:
        review_fees.charge_operator(connection, request_id, tenant_id, order.fee_nano, currency)
    now = clock.now_us()
    item_id = f"rev_{request_id}"
    score = summary.confidence
    insert_once(
        connection,
        review_items,
        {
            "id": item_id,
            "request_id": request_id,
            "tenant_id": tenant_id,
            "rule_version": RULE_VERSION,
            "reason": order.reason,
            "geo_mean": None if score is None else score.geo_mean,
            "fee_nano": order.fee_nano,
            "currency": currency,
            "state": ReviewState.QUEUED.value,
            "claim_token": 0,
            "queued_at_us": now,
            "due_at_us": now + sla_us,
            "paid_by": order.paid_by,
            "delivery": order.delivery.value,
            "opinions_wanted": review_opinions.wanted(item_id, second_opinion_rate),
            "calibrated": None if score is None else score.calibrated,
            "calibration": summary.calibration,
            "inclusion_ppm": order.inclusion_ppm,
            "sampled": order.sampled,
        },
    )
    return item_id


def claim(
    connection: Connection, item_id: str, reviewer_id: str, *, lease_us: int = LEASE_US
) -> int:
    """Take an item for the length of a lease, or take it anew; the token to resolve it with.

    Raises ReviewItemNotFound, or ReviewConflict when another reviewer has it, this one gave an
    opinion on it already, it is final, or its time is over.
    """
    now = clock.now_us()
    free = or_(
        review_items.c.state == ReviewState.QUEUED,
        and_(
            review_items.c.state == ReviewState.CLAIMED,
            or_(
                review_items.c.claim_expires_at_us <= now,
                review_items.c.claimed_by == reviewer_id,
            ),
        ),
    )
    judged = exists(
        select(opinions_table.c.number).where(
            opinions_table.c.item_id == item_id, opinions_table.c.reviewer_id == reviewer_id
        )
    )
    token = connection.scalar(
        update(review_items)
        .where(review_items.c.id == item_id, review_items.c.due_at_us > now, free, ~judged)
        .values(
            state=ReviewState.CLAIMED.value,
            claimed_by=reviewer_id,
            claim_token=review_items.c.claim_token + 1,
            claim_expires_at_us=now + lease_us,
        )
        .returning(review_items.c.claim_token)
    )
    if token is None:
        found = item(connection, item_id)
        if found.state not in OPEN_STATES:
            reason = f"it is {found.state}"
        elif found.due_at_us <= now:
            reason = "its time is over"
        elif connection.scalar(select(judged)):
            reason = "you gave an opinion already, and another reviewer's is wanted"
        else:
            reason = "another reviewer has it"
        raise ReviewConflict(f"{item_id} can't be claimed: {reason}")
    return int(token)


def resolve(
    connection: Connection,
    item_id: str,
    reviewer_id: str,
    token: int,
    *,
    verdict: str,
    signer: Signer,
    reasons: Sequence[str] = (),
    note: str | None = None,
    edited_output: str | None = None,
    second_opinion: bool = False,
) -> ReviewItem:
    """Give an opinion on a claimed item; where it decides, the item is resolved by it.

    With `second_opinion` another reviewer is asked before anything is decided. Giving the same
    opinion with the same token again changes nothing. Raises ReviewItemNotFound, InvalidVerdict, or
    ReviewConflict when the claim with this token no longer holds, or gave another opinion.
    """
    opinion = _checked(
        Opinion(reviewer_id, token, _verdict(verdict), _reasons(reasons), note, edited_output)
    )
    found = item(connection, item_id)
    lock_tenant(connection, found.tenant_id, found.currency)
    wanted = review_items.c.opinions_wanted
    released = connection.execute(
        update(review_items)
        .where(
            review_items.c.id == item_id,
            review_items.c.state == ReviewState.CLAIMED,
            review_items.c.claimed_by == reviewer_id,
            review_items.c.claim_token == token,
        )
        .values(
            state=ReviewState.QUEUED.value,
            claimed_by=None,
            claim_expires_at_us=None,
            opinions=review_items.c.opinions + 1,
            opinions_wanted=2 if second_opinion and not found.opinions else wanted,
        )
    )
    given = review_opinions.of_item(connection, item_id)
    if not released.rowcount:
        if opinion in given:
            return item(connection, item_id)
        if any((each.reviewer_id, each.claim_token) == (reviewer_id, token) for each in given):
            raise ReviewConflict(f"another opinion on {item_id} was given with this token")
        raise ReviewConflict(f"{item_id} is not claimed with this token any more")
    review_opinions.add(connection, item_id, len(given) + 1, opinion)
    current = item(connection, item_id)
    decides = review_opinions.decisive([*given, opinion], current.opinions_wanted)
    return current if decides is None else conclude(connection, item_id, decides, signer)


def _checked(opinion: Opinion) -> Opinion:
    """Raises InvalidVerdict where what belongs to the verdict is missing, or more is given."""
    reasons, verdict = opinion.reasons, opinion.verdict
    if (verdict is Verdict.EDIT) != (opinion.edited_output is not None):
        raise InvalidVerdict("an edited output belongs to the verdict edit, and only to it")
    if (verdict is Verdict.APPROVE) == bool(reasons):
        raise InvalidVerdict("a correction and a rejection give reasons, an approval has none")
    if Reason.OTHER in reasons and not opinion.note:
        raise InvalidVerdict("the reason 'other' needs a note that says what it is")
    if "\0" in (opinion.note or "") + (opinion.edited_output or ""):
        raise InvalidVerdict("text may not hold a NUL character")
    return opinion


def _verdict(text: str) -> Verdict:
    try:
        return Verdict(text)
    except ValueError:
        raise InvalidVerdict(f"a verdict is approve, edit or reject, not {text!r}") from None


def _reasons(texts: Sequence[str]) -> tuple[Reason, ...]:
    try:
        return tuple(Reason(text) for text in dict.fromkeys(texts))
    except ValueError as error:
        raise InvalidVerdict(f"{error}; it is one of {', '.join(Reason)}") from None
