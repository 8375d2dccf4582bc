"""Reviewers' accounts: who a key speaks for, what its verdicts earned, and paying it out.

A reviewer is a lineage of keys: whoever rotates a key goes on under the same account. The
ledger owes each of them by name; a payout takes what is due to cash, once per reference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, insert, select

from billing.errors import InvalidPayout
from billing.ledger.accounts import Account, AccountKind, lock
from billing.ledger.posting import Transfer, TransferKind, post
from billing.money import format_nano
from billing.review_items import Verdict
from billing.review_tables import review_opinions, review_payouts
from billing.tables import accounts
from metering import clock

REFERENCE_CHARS_MAX = 100


@dataclass(frozen=True, slots=True)
class ReviewerAccount:
    """What one reviewer has earned in one currency, and what of it is still due."""

    reviewer_id: str
    currency: str
    earned_nano: int
    paid_nano: int

    @property
    def due_nano(self) -> int:
        """What a payout may take."""
        return self.earned_nano - self.paid_nano


@dataclass(frozen=True, slots=True)
class Payout:
    """One payment to a reviewer."""

    id: str
    reviewer_id: str
    currency: str
    amount_nano: int
    reference: str
    paid_at_us: int


def account(reviewer_id: str, currency: str) -> Account:
    """The account that holds what a reviewer is due."""
    return Account(None, AccountKind.REVIEWER_PAYABLE, currency, reviewer_id)


def listing(connection: Connection, reviewer_id: str | None = None) -> list[ReviewerAccount]:
    """Accounts of all reviewers who ever earned a fee, or of one, by reviewer and currency."""
    query = (
        select(
            accounts.c.reviewer_id,
            accounts.c.currency,
            accounts.c.credits_nano,
            accounts.c.debits_nano,
        )
        .where(accounts.c.reviewer_id.is_not(None))
        .order_by(accounts.c.reviewer_id, accounts.c.currency)
    )
    if reviewer_id is not None:
        query = query.where(accounts.c.reviewer_id == reviewer_id)
    return [ReviewerAccount(*row) for row in connection.execute(query)]


def verdicts(connection: Connection) -> Mapping[str, Mapping[Verdict, int]]:
    """How many opinions of each kind every reviewer gave."""
    counted: dict[str, dict[Verdict, int]] = {}
    for reviewer_id, verdict, count in connection.execute(
        select(review_opinions.c.reviewer_id, review_opinions.c.verdict, func.count())
        .group_by(review_opinions.c.reviewer_id, review_opinions.c.verdict)
        .order_by(review_opinions.c.reviewer_id)
    ):
        counted.setdefault(reviewer_id, {})[Verdict(verdict)] = count
    return counted


def pay_out(
    connection: Connection,
    reviewer_id: str,
    currency: str,
    *,
    reference: str,
    amount_nano: int | None = None,
) -> tuple[Payout, bool]:
    """Book that a reviewer was paid what is due, or a part of it; and whether that was news.

    Once per reference: the same again returns the first payout and moves nothing. Raises
    InvalidPayout.
    """
    if not (0 < len(reference) <= REFERENCE_CHARS_MAX and reference.isprintable()):
        raise InvalidPayout(f"a reference has 1 to {REFERENCE_CHARS_MAX} printable characters")
    owed = account(reviewer_id, currency)
    known = connection.scalar(select(accounts.c.id).where(accounts.c.id == owed.id))
    if known is None:
        raise InvalidPayout(f"{reviewer_id} has never earned a fee in {currency}")
    due_nano = lock(connection, [owed])[owed].balance_nano
    earlier = _payout(connection, reviewer_id, reference)
    if earlier is not None:
        if amount_nano not in {None, earlier.amount_nano} or earlier.currency != currency:
            raise InvalidPayout(f"{reference} was paid before, with another amount")
        return earlier, False
    amount = due_nano if amount_nano is None else amount_nano
    if not 0 < amount <= due_nano:
        due, said = format_nano(due_nano), format_nano(amount)
        raise InvalidPayout(f"{reviewer_id} is due {due} {currency}, of which {said} can't be paid")
    payout = Payout(
        _payout_id(reviewer_id, reference),
        *(reviewer_id, currency, amount, reference, clock.now_us()),
    )
    connection.execute(
        insert(review_payouts).values(
            id=payout.id,
            reviewer_id=reviewer_id,
            currency=currency,
            amount_nano=amount,
            reference=reference,
            paid_at_us=payout.paid_at_us,
        )
    )
    paid = Transfer(
        id=payout.id,
        kind=TransferKind.PAYOUT,
        debit=owed,
        credit=Account(None, AccountKind.CASH, currency),
        amount_nano=amount,
        event_time_us=payout.paid_at_us,
    )
    post(connection, paid.id, [paid])
    return payout, True


def payouts(connection: Connection, reviewer_id: str | None, limit: int) -> list[Payout]:
    """The latest payouts, of one reviewer or of all, newest first."""
    query = select(review_payouts).order_by(
        review_payouts.c.paid_at_us.desc(), review_payouts.c.id.desc()
    )
    if reviewer_id is not None:
        query = query.where(review_payouts.c.reviewer_id == reviewer_id)
    return [Payout(**row) for row in connection.execute(query.limit(limit)).mappings()]


def _payout_id(reviewer_id: str, reference: str) -> str:
    """Another one for every reviewer and reference, however long: neither has a line break."""
    named = hashlib.sha256(f"{reviewer_id}\n{reference}".encode())
    return f"payout/{named.hexdigest()}"


def _payout(connection: Connection, reviewer_id: str, reference: str) -> Payout | None:
    """What was paid before, by what it was called: ids were made in another way once."""
    paid = review_payouts.c
    row = (
        connection.execute(
            select(review_payouts).where(
                paid.reviewer_id == reviewer_id, paid.reference == reference
            )
        )
        .mappings()
        .one_or_none()
    )
    return None if row is None else Payout(**row)
