"""How a review ends: with the opinion that decides, or because nobody gave one in time.

Either way it happens under the tenant's lock, moves the fee once, and is signed beside the receipt.
"""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, Select, and_, or_, select, update

from billing import receipts, review_fees, review_labels, review_opinions
from billing.ledger.accounts import try_lock_tenant
from billing.money import format_nano
from billing.notices import NoticeType, announce
from billing.review_items import ReviewItem, ReviewState, Verdict, item
from billing.review_opinions import Opinion
from billing.signing import Signer
from billing.tables import review_items
from metering import clock, content_hash
from metering.tables import requests

RULE_VERSION = "review/1"
LAPSED_MAX = 100  # items closed in one transaction
LAPSED = "review_lapsed"
REASONS = {
    Verdict.APPROVE: "review_approved",
    Verdict.EDIT: "review_edited",
    Verdict.REJECT: "review_rejected",
}


def conclude(connection: Connection, item_id: str, opinion: Opinion, signer: Signer) -> ReviewItem:
    """Resolve an open item by an opinion on it; the caller holds the tenant's lock.

    The fee becomes the due of everybody who gave an opinion, in equal parts. A rejection also gives
    the tenant back what it paid for the output.
    """
    connection.execute(
        update(review_items)
        .where(review_items.c.id == item_id)
        .values(
            state=ReviewState.RESOLVED.value,
            verdict=opinion.verdict.value,
            reasons=msgspec.json.encode(opinion.reasons).decode(),
            note=opinion.note,
            edited_output=opinion.edited_output,
            resolved_by=opinion.reviewer_id,
            resolved_at_us=clock.now_us(),
        )
    )
    final = item(connection, item_id)
    rejected = opinion.verdict is Verdict.REJECT
    refund = review_fees.refundable(connection, final) if rejected else 0
    given = review_opinions.of_item(connection, item_id)
    review_fees.pay(connection, final, [each.reviewer_id for each in given], refund)
    review_labels.write(connection, final)
    _sign(connection, signer, final, REASONS[opinion.verdict], refund)
    _announce(connection, NoticeType.REVIEW_RESOLVED, final, refund)
    return final


def next_due(connection: Connection, now_us: int, after: str = "") -> str | None:
    """The first tenant after another, by their ids, with an item to lapse; null at the end."""
    found = _overdue(now_us).where(review_items.c.tenant_id > after)
    row = connection.execute(found.order_by(review_items.c.tenant_id).limit(1)).first()
    return None if row is None else str(row.tenant_id)


def lapse(connection: Connection, tenant_id: str, now_us: int, signer: Signer) -> int:
    """Close a tenant's items whose time is over, and say how many. Bounded: there may be more.

    One that has an opinion is resolved by it, though another was wanted; the others lapse, and
    their fees go back. An item whose claim is still running is left until the lease is over, and a
    tenant that another transaction is working on is left for later.
    """
    query = (
        _overdue(now_us).where(review_items.c.tenant_id == tenant_id).order_by(review_items.c.id)
    )
    late = connection.execute(query.limit(LAPSED_MAX)).all()
    if not late or not try_lock_tenant(connection, tenant_id, late[0].currency):
        return 0
    ids = [row.id for row in late]
    still = query.where(review_items.c.id.in_(ids)).with_for_update(key_share=True)
    ended = connection.scalars(still).all()
    for item_id in ended:
        stands = review_opinions.standing(review_opinions.of_item(connection, item_id))
        if stands is None:
            _lapse(connection, item_id, signer)
        else:
            conclude(connection, item_id, stands, signer)
    return len(ended)


def _overdue(now_us: int) -> Select[str, str, str]:
    """Open items past their time that nobody is reading."""
    unclaimed = or_(
        review_items.c.state == ReviewState.QUEUED,
        and_(
            review_items.c.state == ReviewState.CLAIMED,
            review_items.c.claim_expires_at_us <= now_us,
        ),
    )
    return select(review_items.c.id, review_items.c.tenant_id, review_items.c.currency).where(
        review_items.c.due_at_us <= now_us, unclaimed
    )


def _lapse(connection: Connection, item_id: str, signer: Signer) -> None:
    connection.execute(
        update(review_items)
        .where(review_items.c.id == item_id)
        .values(state=ReviewState.LAPSED.value, resolved_at_us=clock.now_us())
    )
    lapsed = item(connection, item_id)
    returned = review_fees.give_back(connection, lapsed)
    _sign(connection, signer, lapsed, LAPSED, returned)
    _announce(connection, NoticeType.REVIEW_LAPSED, lapsed, returned)


def _sign(
    connection: Connection, signer: Signer, final: ReviewItem, reason: str, returned_nano: int
) -> None:
    receipts.adjust(
        connection,
        signer,
        adjustment_id=f"{final.request_id}/{RULE_VERSION}",
        request_id=final.request_id,
        reason=reason,
        amount_nano=-returned_nano,
        review=_outcome(connection, final),
    )


def _announce(
    connection: Connection, kind: NoticeType, final: ReviewItem, returned_nano: int
) -> None:
    """Tell the tenant, without any content: where the corrected output is to be had.

    Of samples of our own that changed nothing it is told as little as it can read.
    """
    if not final.concerns_tenant:
        return
    announce(
        connection,
        final.tenant_id,
        kind,
        final.id,
        {
            "request_id": final.request_id,
            **_outcome(connection, final),
            "returned": format_nano(returned_nano),
            "currency": final.currency,
            "outcome_url": f"/generations/{final.request_id}",
        },
    )


def _outcome(connection: Connection, final: ReviewItem) -> dict[str, object]:
    salt = select(requests.c.content_salt).where(requests.c.id == final.request_id)
    return outcome_document(final, connection.scalar(salt))


def outcome_document(final: ReviewItem, salt: str | None) -> dict[str, object]:
    """What is signed and told of a review that has ended; the salt is its request's. Pure."""
    edited = final.edited_output
    return {
        "item_id": final.id,
        "rule": final.rule_version,
        "verdict": final.verdict.value if final.verdict else None,
        "reasons": [reason.value for reason in final.reasons],
        "opinions": final.opinions,
        "fee": format_nano(final.fee_nano),
        "edited_output_sha256": None if edited is None else content_hash.of_text(salt, edited),
    }
