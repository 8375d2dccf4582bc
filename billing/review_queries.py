"""What pages and metrics read of reviews: what waits, and where its fees are. Changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from billing.ledger.accounts import AccountKind
from billing.ledger.posting import TransferKind
from billing.queries import books
from billing.review_items import OPEN_STATES
from billing.tables import accounts, review_items, transfers

KINDS = (
    TransferKind.REVIEW_FEE,
    TransferKind.REVIEW_PAYABLE,
    TransferKind.REVIEW_LAPSE,
    TransferKind.REFUND,
)


@dataclass(frozen=True, slots=True)
class Movement:
    """A transfer between two kinds of account."""

    at_us: int
    kind: str
    from_kind: str
    to_kind: str
    amount_nano: int
    currency: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """Review items that wait for a verdict."""

    queued: int
    claimed: int
    oldest_us: int | None  # age of the oldest; null when nothing waits

    @property
    def depth(self) -> int:
        """All that wait."""
        return self.queued + self.claimed


@dataclass(frozen=True, slots=True)
class ReviewFunds:
    """Fees of open reviews, and what verdicts have made the reviewers' due."""

    currency: str
    pool_nano: int
    payable_nano: int


def movements(connection: Connection, request_id: str) -> list[Movement]:
    """How a review's fee, and what its verdict refunded, moved; oldest first."""
    debited, credited = accounts.alias("debited"), accounts.alias("credited")
    rows = connection.execute(
        select(
            transfers.c.booked_at_us,
            transfers.c.kind,
            debited.c.kind,
            credited.c.kind,
            transfers.c.amount_nano,
            transfers.c.currency,
        )
        .join(debited, debited.c.id == transfers.c.debit_account_id)
        .join(credited, credited.c.id == transfers.c.credit_account_id)
        .where(transfers.c.request_id == request_id, transfers.c.kind.in_(KINDS))
        .order_by(transfers.c.seq)
    )
    return [Movement(*row) for row in rows]


def backlog(connection: Connection, now_us: int) -> Backlog:
    """How many items wait for a verdict, and for how long the oldest has."""
    rows = connection.execute(
        select(review_items.c.state, func.count(), func.min(review_items.c.queued_at_us))
        .where(review_items.c.state.in_(OPEN_STATES))
        .group_by(review_items.c.state)
    ).all()
    counts = {state: count for state, count, _ in rows}
    return Backlog(
        queued=counts.get("queued", 0),
        claimed=counts.get("claimed", 0),
        oldest_us=now_us - min(oldest for _, _, oldest in rows) if rows else None,
    )


def funds(connection: Connection) -> list[ReviewFunds]:
    """The review pool and the reviewers' due, by currency; empty while no fee was ever queued."""
    totals: dict[str, dict[str, int]] = {}
    for total in books(connection):
        if total.kind in {AccountKind.REVIEW_POOL, AccountKind.REVIEWER_PAYABLE}:
            totals.setdefault(total.currency, {})[total.kind] = total.balance_nano
    return [
        ReviewFunds(
            currency,
            pool_nano=balances.get(AccountKind.REVIEW_POOL, 0),
            payable_nano=balances.get(AccountKind.REVIEWER_PAYABLE, 0),
        )
        for currency, balances in totals.items()
    ]
