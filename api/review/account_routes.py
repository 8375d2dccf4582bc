"""`/review/standing`, `/review/accounts` and `/review/payouts`: the queue's health, and money."""

from __future__ import annotations

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Engine as Database

from api import audit
from api.auth import Principal, Scope, requires
from api.error_reports import documented
from api.errors import Forbidden, Unauthenticated
from api.review.schemas import (
    PayoutRequest,
    PayoutView,
    ReviewerAccounts,
    ReviewerAccountView,
    StandingView,
)
from billing import lineages, review_standing, reviewers
from billing.errors import InvalidAmount, InvalidPayout
from billing.money import parse_nano
from metering import clock
from metering.database import snapshot, transaction

PAYOUTS_SHOWN = 100


@get(
    "/standing",
    guards=[requires(Scope.REVIEW)],
    summary="Read how the review queue does",
    responses=documented(Unauthenticated, Forbidden),
    sync_to_thread=True,
)
def read_standing(database: NamedDependency[Database]) -> StandingView:
    """What waits, for how long, and how far first and second opinions agree."""
    with snapshot(database) as connection:
        return StandingView.of(review_standing.standing(connection, clock.now_us()))


@get(
    "/accounts",
    guards=[requires(Scope.REVIEW)],
    summary="List reviewers' accounts",
    responses=documented(Unauthenticated, Forbidden),
    sync_to_thread=True,
)
def list_accounts(
    principal: NamedDependency[Principal], database: NamedDependency[Database]
) -> ReviewerAccounts:
    """What reviewers earned and were paid; a reviewer sees its own."""
    with snapshot(database) as connection:
        mine = None
        if not principal.may(Scope.ADMINISTER):
            mine = lineages.of_key(connection, principal.key_id)
        return ReviewerAccounts(
            [ReviewerAccountView.of(each) for each in reviewers.listing(connection, mine)],
            [PayoutView.of(each) for each in reviewers.payouts(connection, mine, PAYOUTS_SHOWN)],
        )


@post(
    "/payouts",
    guards=[requires(Scope.ADMINISTER)],
    summary="Book a payment to a reviewer",
    responses=documented(InvalidAmount, InvalidPayout, Unauthenticated, Forbidden),
    sync_to_thread=True,
)
def book_payout(
    data: JSONBody[PayoutRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
) -> PayoutView:
    """Take what a reviewer was paid off what is due. The same reference again changes nothing."""
    with transaction(database) as connection:
        payout, is_news = reviewers.pay_out(
            connection,
            data.reviewer_id,
            data.currency,
            reference=data.reference,
            amount_nano=None if data.amount is None else parse_nano(data.amount),
        )
        if is_news:
            audit.write(
                connection,
                actor=principal.key_id,
                action="review.paid_out",
                subject=data.reviewer_id,
                payout=payout.id,
                amount_nano=payout.amount_nano,
                currency=payout.currency,
            )
    return PayoutView.of(payout)


ROUTES = (read_standing, list_accounts, book_payout)
