"""The way of a review's fee, and of what a rejection gives back.

The fee waits in the tenant's part of the review pool, whoever paid it. Any verdict makes it the
reviewers' due; a lapse returns it to its payer by reversing the transfer that brought it.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, select

from billing import budgets, refunds, reviewers
from billing.ledger import funding
from billing.ledger.accounts import Account, AccountKind
from billing.ledger.posting import Transfer, TransferKind, post
from billing.money import split
from billing.rating import Component
from billing.review_items import ReviewItem
from billing.tables import rated_lines
from metering import clock


def charge_operator(
    connection: Connection, request_id: str, tenant_id: str, fee_nano: int, currency: str
) -> None:
    """Put the operator's fee into the pool, out of what was earned with this tenant."""
    fee = Transfer(
        id=_fee_id(request_id),
        kind=TransferKind.REVIEW_FEE,
        debit=Account(tenant_id, AccountKind.EARNINGS, currency),
        credit=Account(tenant_id, AccountKind.REVIEW_POOL, currency),
        amount_nano=fee_nano,
        event_time_us=clock.now_us(),
        request_id=request_id,
    )
    post(connection, fee.id, [fee])


def refundable(connection: Connection, item: ReviewItem) -> int:
    """What the tenant paid for the output: at most its lines, at most what it still paid at all."""
    output = connection.scalars(
        select(rated_lines.c.amount_nano).where(
            rated_lines.c.request_id == item.request_id,
            rated_lines.c.component == Component.OUTPUT,
        )
    )
    return max(0, min(int(sum(output)), refunds.paid(connection, item.request_id)))


def pay(
    connection: Connection, item: ReviewItem, reviewer_ids: Sequence[str], refund_nano: int
) -> None:
    """Make the fee the reviewers' due, in equal parts, and give the tenant its refund."""
    cause = f"{item.request_id}/review_payable"
    shares = split(item.fee_nano, [1] * len(reviewer_ids))
    due = [
        Transfer(
            id=cause if number == 0 else f"{cause}:{number + 1}",
            kind=TransferKind.REVIEW_PAYABLE,
            debit=Account(item.tenant_id, AccountKind.REVIEW_POOL, item.currency),
            credit=reviewers.account(reviewer_id, item.currency),
            amount_nano=share,
            event_time_us=clock.now_us(),
            request_id=item.request_id,
        )
        for number, (reviewer_id, share) in enumerate(zip(reviewer_ids, shares, strict=True))
    ]
    post(connection, cause, due)
    if refund_nano:
        refunds.refund(
            connection,
            item.request_id,
            tenant_id=item.tenant_id,
            currency=item.currency,
            amount_nano=refund_nano,
            cause=f"{item.request_id}/refund",
        )


def give_back(connection: Connection, item: ReviewItem) -> int:
    """Return the fee to whoever paid it; what of it went to the tenant."""
    tenant_paid = item.paid_by == "tenant"
    cause = f"{item.request_id}/review_lapse"
    parts: dict[AccountKind, int] = {AccountKind.EARNINGS: item.fee_nano}
    if tenant_paid:
        parts = funding.give_back(connection, item.request_id, item.fee_nano)
    back = [
        Transfer(
            id=cause if kind is AccountKind.EARNINGS else name,
            kind=TransferKind.REVIEW_LAPSE,
            debit=Account(item.tenant_id, AccountKind.REVIEW_POOL, item.currency),
            credit=Account(item.tenant_id, kind, item.currency),
            amount_nano=amount,
            event_time_us=clock.now_us(),
            request_id=item.request_id,
            reverses_id=_fee_id(item.request_id),
        )
        for name, kind, amount in funding.names(cause, parts)
    ]
    post(connection, cause, back)
    if not tenant_paid:
        return 0
    budgets.give_back(connection, item.request_id, item.fee_nano)
    return item.fee_nano


def _fee_id(request_id: str) -> str:
    return f"{request_id}/review_fee"
