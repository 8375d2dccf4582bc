"""How a review ends: with the opinion that decides, or because nobody gave one in time.

Either way it happens under the tenant's lock, moves the fee once, and is signed beside the receipt.
"""

from __future__ import annotations

from itertools import groupby

import msgspec
from sqlalchemy import Connection, and_, or_, select, update

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


def lapse(connection: Connection, now_us: int, signer: Signer) -> int:
    """Close items whose time is over, and say how many.

    One that has an opinion is resolved by it, though another was wanted; the others lapse, and
    their fees go back. An item whose claim is still running is left until the lease is over, and so
    is a tenant that another transaction is working on.
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
        still = query.where(review_items.c.id.in_(ids)).with_for_update(key_share=True)
        for item_id in sorted(row.id for row in connection.execute(still)):
            stands = review_opinions.standing(review_opinions.of_item(connection, item_id))
            if stands is None:
                _lapse(connection, item_id, signer)
            else:
                conclude(connection, item_id, stands, signer)
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
    _sign(connection, signer, lapsed, "review_lapsed", returned)
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
    """Tell the tenant, without any content: where the corrected output is to be had."""
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
    edited = final.edited_output
    of_request = select(requests.c.content_salt).where(requests.c.id == final.request_id)
    return {
        "item_id": final.id,
        "rule": final.rule_version,
        "verdict": final.verdict.value if final.verdict else None,
        "reasons": [reason.value for reason in final.reasons],
        "opinions": final.opinions,
        "fee": format_nano(final.fee_nano),
        "edited_output_sha256": (
            None if edited is None else content_hash.of_text(connection.scalar(of_request), edited)
        ),
    }
