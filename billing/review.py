"""Human review of doubtful outputs: a queue, claims with a lease, verdicts.

queued -> claimed -> resolved, or lapsed when nobody resolved it in time. A claim carries a token
that grows with every claim, so that a reviewer whose lease ran out and whose item went to another
can't resolve it any more. Every outcome is a signed adjustment of the request's receipt.
"""

from __future__ import annotations

import hashlib
from itertools import groupby

from sqlalchemy import Connection, and_, or_, select, update

from billing import receipts, review_fees
from billing.errors import InvalidVerdict, ReviewConflict
from billing.ledger.accounts import lock_tenant, try_lock_tenant
from billing.money import format_nano
from billing.notices import NoticeType, announce
from billing.review_items import OPEN_STATES, ReviewItem, ReviewState, Verdict, item, items
from billing.rows import insert_once
from billing.signing import Signer
from billing.tables import review_items
from metering import clock

__all__ = [
    "OPEN_STATES",
    "ReviewItem",
    "ReviewState",
    "Verdict",
    "claim",
    "item",
    "items",
    "lapse",
    "queue",
    "resolve",
]

RULE_VERSION = "review/1"
SLA_US = 24 * 3600 * 10**6
LEASE_US = 15 * 60 * 10**6


REASONS = {
    Verdict.APPROVE: "review_approved",
    Verdict.EDIT: "review_edited",
    Verdict.REJECT: "review_rejected",
}


def queue(
    connection: Connection,
    *,
    request_id: str,
    tenant_id: str,
    reason: str,
    geo_mean: str | None,
    fee_nano: int,
    currency: str,
    paid_by_tenant: bool,
    sla_us: int = SLA_US,
) -> str:
    """Queue an output for review, and return the item's id. Once per request and rule.

    A tenant's fee is in the pool already, moved there by the settlement; the operator's is taken
    from what was earned with this tenant.
    """
    if not paid_by_tenant:
        review_fees.charge_operator(connection, request_id, tenant_id, fee_nano, currency)
    now = clock.now_us()
    item_id = f"rev_{request_id}"
    insert_once(
        connection,
        review_items,
        {
            "id": item_id,
            "request_id": request_id,
            "tenant_id": tenant_id,
            "rule_version": RULE_VERSION,
            "reason": reason,
            "geo_mean": geo_mean,
            "fee_nano": fee_nano,
            "currency": currency,
            "state": ReviewState.QUEUED.value,
            "claim_token": 0,
            "queued_at_us": now,
            "due_at_us": now + sla_us,
        },
    )
    return item_id


def claim(
    connection: Connection, item_id: str, reviewer_id: str, *, lease_us: int = LEASE_US
) -> int:
    """Take an item for the length of a lease, or take it anew; the token to resolve it with.

    Raises ReviewItemNotFound, or ReviewConflict when another reviewer has it, it is final, or its
    time is over.
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
    token = connection.scalar(
        update(review_items)
        .where(review_items.c.id == item_id, review_items.c.due_at_us > now, free)
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
    note: str | None = None,
    edited_output: str | None = None,
) -> ReviewItem:
    """Give the verdict on a claimed item, move its fee, and sign the outcome.

    A rejection also gives the tenant back what it paid for the output. Giving the same verdict
    with the same token again changes nothing. Raises ReviewItemNotFound, InvalidVerdict, or
    ReviewConflict when the claim with this token no longer holds.
    """
    chosen = _verdict(verdict, note, edited_output)
    found = item(connection, item_id)
    lock_tenant(connection, found.tenant_id, found.currency)
    resolved = connection.execute(
        update(review_items)
        .where(
            review_items.c.id == item_id,
            review_items.c.state == ReviewState.CLAIMED,
            review_items.c.claimed_by == reviewer_id,
            review_items.c.claim_token == token,
        )
        .values(
            state=ReviewState.RESOLVED.value,
            verdict=chosen.value,
            note=note,
            edited_output=edited_output,
            resolved_by=reviewer_id,
            resolved_at_us=clock.now_us(),
        )
    )
    current = item(connection, item_id)
    if not resolved.rowcount:
        if (current.resolved_by, current.claim_token, current.verdict) == (
            reviewer_id,
            token,
            chosen,
        ):
            return current
        raise ReviewConflict(f"{item_id} is not claimed with this token any more")
    refund = review_fees.refundable(connection, current) if chosen is Verdict.REJECT else 0
    review_fees.pay(connection, current, refund)
    receipts.adjust(
        connection,
        signer,
        adjustment_id=f"{current.request_id}/{RULE_VERSION}",
        request_id=current.request_id,
        reason=REASONS[chosen],
        amount_nano=-refund,
        review=_outcome(current),
    )
    _announce(connection, NoticeType.REVIEW_RESOLVED, current, refund)
    return current


def lapse(connection: Connection, now_us: int, signer: Signer) -> int:
    """Close items that nobody resolved in time, give their fees back, and say how many.

    An item whose claim is still running is left until the lease is over, and so is a tenant that
    another transaction is working on.
    """
    query = (
        select(review_items.c.id, review_items.c.tenant_id, review_items.c.currency)
        .where(
            review_items.c.due_at_us <= now_us,
            or_(
                review_items.c.state == ReviewState.QUEUED,
                and_(
                    review_items.c.state == ReviewState.CLAIMED,
                    review_items.c.claim_expires_at_us <= now_us,
                ),
            ),
        )
        .order_by(review_items.c.tenant_id, review_items.c.id)
    )
    candidates = connection.execute(query).all()
    count = 0
    for (tenant_id, currency), late in groupby(candidates, key=lambda row: (row[1], row[2])):
        if not try_lock_tenant(connection, tenant_id, currency):
            continue
        ids = [row.id for row in late]
        for item_id in sorted(connection.scalars(query.where(review_items.c.id.in_(ids)))):
            _lapse(connection, item_id, signer)
            count += 1
    return count


def _lapse(connection: Connection, item_id: str, signer: Signer) -> None:
    connection.execute(
        update(review_items)
        .where(review_items.c.id == item_id)
        .values(state=ReviewState.LAPSED.value, resolved_at_us=clock.now_us())
    )
    lapsed = item(connection, item_id)
    returned = review_fees.give_back(connection, lapsed)
    receipts.adjust(
        connection,
        signer,
        adjustment_id=f"{lapsed.request_id}/{RULE_VERSION}",
        request_id=lapsed.request_id,
        reason="review_lapsed",
        amount_nano=-returned,
        review=_outcome(lapsed),
    )
    _announce(connection, NoticeType.REVIEW_LAPSED, lapsed, returned)


def _announce(
    connection: Connection, kind: NoticeType, final: ReviewItem, returned_nano: int
) -> None:
    announce(
        connection,
        final.tenant_id,
        kind,
        final.id,
        {
            "request_id": final.request_id,
            **_outcome(final),
            "returned": format_nano(returned_nano),
            "currency": final.currency,
        },
    )


def _outcome(final: ReviewItem) -> dict[str, object]:
    edited = final.edited_output
    return {
        "item_id": final.id,
        "rule": final.rule_version,
        "verdict": final.verdict.value if final.verdict else None,
        "fee": format_nano(final.fee_nano),
        "edited_output_sha256": (
            None if edited is None else hashlib.sha256(edited.encode()).hexdigest()
        ),
    }


def _verdict(verdict: str, note: str | None, edited_output: str | None) -> Verdict:
    try:
        chosen = Verdict(verdict)
    except ValueError:
        raise InvalidVerdict(f"a verdict is approve, edit or reject, not {verdict!r}") from None
    if (chosen is Verdict.EDIT) != (edited_output is not None):
        raise InvalidVerdict("an edited output belongs to the verdict edit, and only to it")
    if "\0" in (note or "") + (edited_output or ""):
        raise InvalidVerdict("text may not hold a NUL character")
    return chosen
