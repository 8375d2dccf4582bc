"""The wire of `/review`: items, claims, opinions, reviewers' accounts."""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from api.schemas import LINE, LINES, Amount, Currency, to_time, to_time_or_null
from billing.money import format_nano
from billing.review import ReviewItem, ReviewState, Verdict
from billing.review_items import Delivery, Reason
from billing.review_opinions import Opinion
from billing.review_standing import Standing
from billing.reviewers import Payout, ReviewerAccount

Note = Annotated[str, Meta(max_length=10_000, pattern=LINES, description="Why; kept with the item")]
EditedOutput = Annotated[
    str, Meta(max_length=1_000_000, description="The corrected output; with the verdict `edit`")
]


class ReviewItemView(msgspec.Struct, frozen=True):
    """One output to be looked at, without its text. Scores are null where one is missing."""

    id: str
    request_id: str
    tenant_id: str
    reason: str
    geo_mean: str | None
    calibrated: str | None
    calibration: str | None
    fee: str
    currency: str
    paid_by: str
    delivery: Delivery
    state: ReviewState
    claimed_by: str | None
    claim_expires_at: datetime | None
    opinions: int
    opinions_wanted: int
    verdict: Verdict | None
    reasons: list[Reason]
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
            calibrated=item.calibrated,
            calibration=item.calibration,
            fee=format_nano(item.fee_nano),
            currency=item.currency,
            paid_by=item.paid_by,
            delivery=item.delivery,
            state=item.state,
            claimed_by=item.claimed_by,
            claim_expires_at=to_time_or_null(item.claim_expires_at_us),
            opinions=item.opinions,
            opinions_wanted=item.opinions_wanted,
            verdict=item.verdict,
            reasons=list(item.reasons),
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


class OpinionView(msgspec.Struct, frozen=True):
    """What one reviewer said of an item."""

    reviewer_id: str
    verdict: Verdict
    reasons: list[Reason]
    note: str | None

    @classmethod
    def of(cls, opinion: Opinion) -> OpinionView:
        """The wire's view of an opinion."""
        return cls(opinion.reviewer_id, opinion.verdict, list(opinion.reasons), opinion.note)


class ReviewDetail(msgspec.Struct, frozen=True):
    """An item with what was asked and answered; null once erased.

    What points at a person is hidden behind marks such as `[email 1]`. `opinions` stay empty until
    there are two, so that a second one is given without knowing the first.
    """

    item: ReviewItemView
    prompt: Any
    output: str | None
    edited_output: str | None
    opinions: list[OpinionView]


class ClaimView(msgspec.Struct, frozen=True):
    """A claim: who resolves the item has to show its token before the lease ends."""

    item: ReviewItemView
    token: int


class VerdictRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The verdict on a claimed item. A correction and a rejection give their reasons."""

    token: Annotated[int, Meta(ge=0, le=2**31 - 1, description="The claim's token")]
    verdict: Verdict
    reasons: Annotated[list[Reason], Meta(max_length=len(Reason))] = []
    note: Note | None = None
    edited_output: EditedOutput | None = None
    second_opinion: Annotated[
        bool, Meta(description="Ask another reviewer before anything is decided")
    ] = False


class StandingView(msgspec.Struct, frozen=True):
    """How the queue does. Ages are null where nothing waits, `kappa` where it has no meaning."""

    waiting: int
    overdue: int
    age_s_median: int | None
    age_s_p95: int | None
    second_opinions: int
    agreed: int
    kappa: str | None

    @classmethod
    def of(cls, standing: Standing) -> StandingView:
        """The wire's view of the queue's standing."""
        agreement = standing.agreement
        return cls(
            waiting=standing.waiting,
            overdue=standing.overdue,
            age_s_median=_seconds(standing.age_us_median),
            age_s_p95=_seconds(standing.age_us_p95),
            second_opinions=agreement.items,
            agreed=agreement.agreed,
            kappa=_places(agreement.kappa),
        )


class ReviewerAccountView(msgspec.Struct, frozen=True):
    """What a reviewer earned in one currency, and what of it is still due."""

    reviewer_id: str
    currency: str
    earned: str
    paid: str
    due: str

    @classmethod
    def of(cls, account: ReviewerAccount) -> ReviewerAccountView:
        """The wire's view of an account."""
        return cls(
            reviewer_id=account.reviewer_id,
            currency=account.currency,
            earned=format_nano(account.earned_nano),
            paid=format_nano(account.paid_nano),
            due=format_nano(account.due_nano),
        )


class PayoutRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A payment that was made to a reviewer, to be booked once for its reference."""

    reviewer_id: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.:-]{1,64}(?!\n)$")]
    reference: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=100,
            pattern=LINE,
            description="The bank's, or your own; unique",
        ),
    ]
    amount: Amount | None = None  # null: all that is due
    currency: Currency = "USD"


class PayoutView(msgspec.Struct, frozen=True):
    """A payment to a reviewer, as booked."""

    id: str
    reviewer_id: str
    amount: str
    currency: str
    reference: str
    paid_at: datetime

    @classmethod
    def of(cls, payout: Payout) -> PayoutView:
        """The wire's view of a payout."""
        return cls(
            id=payout.id,
            reviewer_id=payout.reviewer_id,
            amount=format_nano(payout.amount_nano),
            currency=payout.currency,
            reference=payout.reference,
            paid_at=to_time(payout.paid_at_us),
        )


class ReviewerAccounts(msgspec.Struct, frozen=True):
    """Accounts and the latest payouts: everybody's for an operator, one's own for a reviewer."""

    accounts: list[ReviewerAccountView]
    payouts: list[PayoutView]


def _seconds(us: int | None) -> int | None:
    return None if us is None else us // 10**6


def _places(value: Fraction | None) -> str | None:
    return None if value is None else f"{float(value):.4f}"
