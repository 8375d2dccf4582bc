"""Accounts, and the order in which they are locked.

A balance is credits minus debits: what the operator owes, for the liabilities that must never go
negative. Every writer locks a tenant's credit account before any other account of that tenant, so
that account is the tenant's mutex, and no two writers of one tenant can deadlock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, case, select

from billing.rows import insert_once
from billing.tables import accounts
from metering.prepared import Prepared


class AccountKind(StrEnum):
    """What an account stands for. `accounts` in the database knows no other."""

    TENANT_CREDIT = "tenant_credit"  # prepaid, free to spend
    PROMOTIONAL = "promotional"
    HOLDS = "holds"  # prepaid, reserved by live requests
    RECEIVABLE = "receivable"
    ACCRUED = "accrued"
    EARNINGS = "earnings"
    REVIEW_POOL = "review_pool"  # fees of reviews that are not resolved yet
    REVIEWER_PAYABLE = "reviewer_payable"
    CASH = "cash"
    PAYMENT_CLEARING = "payment_clearing"
    TAX = "tax"
    ROUNDING = "rounding"
    BREAKAGE = "breakage"
    WRITE_OFF = "write_off"  # charges that neither hold nor credit covered


NEVER_NEGATIVE = frozenset(
    {
        AccountKind.TENANT_CREDIT,
        AccountKind.PROMOTIONAL,
        AccountKind.HOLDS,
        AccountKind.REVIEW_POOL,
        AccountKind.REVIEWER_PAYABLE,
    }
)


class Account(NamedTuple):
    """One account. A null tenant is the operator's own; what is due to a reviewer is by reviewer.

    Whatever a settlement touches is kept per tenant, earnings too: one row that every request of
    every tenant had to update would serialise them all.
    """

    tenant_id: str | None
    kind: AccountKind
    currency: str
    reviewer_id: str | None = None

    @property
    def id(self) -> str:
        """The row's id: unique also where the tenant is null."""
        return f"{self.tenant_id or self.reviewer_id or 'op'}:{self.kind}:{self.currency}"


@dataclass(frozen=True, slots=True)
class Sides:
    """All that ever left an account, and all that ever arrived."""

    debits_nano: int
    credits_nano: int

    @property
    def balance_nano(self) -> int:
        """Credits minus debits."""
        return self.credits_nano - self.debits_nano


def of(connection: Connection, account: Account) -> int:
    """Credits minus debits of one account, in nano; 0 for one that was never used."""
    stored = connection.scalar(
        select(accounts.c.credits_nano - accounts.c.debits_nano).where(accounts.c.id == account.id)
    )
    return 0 if stored is None else int(stored)


def lock(connection: Connection, wanted: Iterable[Account]) -> dict[Account, Sides]:
    """Lock accounts until the transaction ends, creating those that are new; what they hold.

    Locks the credit account of every tenant involved before its others, tenants in a fixed order
    and the operator's accounts last. On SQLite the writer has the whole database already.
    """
    chosen = set(wanted)
    chosen |= {
        Account(each.tenant_id, AccountKind.TENANT_CREDIT, each.currency)
        for each in chosen
        if each.tenant_id is not None
    }
    found = _locked(connection, chosen)
    missing = [account for account in chosen if account.id not in found]
    if missing:
        for account in sorted(missing, key=lambda each: each.id):
            _create(connection, account)
        found = _locked(connection, chosen)
    return {account: found[account.id] for account in chosen}


def lock_tenant(connection: Connection, tenant_id: str, currency: str) -> int:
    """Lock everything that is booked for a tenant; its available credit in nano."""
    credit = Account(tenant_id, AccountKind.TENANT_CREDIT, currency)
    return lock(connection, [credit])[credit].balance_nano


def try_lock_tenant(connection: Connection, tenant_id: str, currency: str) -> bool:
    """Lock a tenant unless another transaction has it; sweeps never wait, so never deadlock."""
    credit = Account(tenant_id, AccountKind.TENANT_CREDIT, currency)
    row = connection.execute(
        select(accounts.c.id)
        .where(accounts.c.id == credit.id)
        .with_for_update(skip_locked=True, key_share=True)
    ).one_or_none()
    return row is not None


_LOCKED = Prepared(
    select(accounts.c.id, accounts.c.debits_nano, accounts.c.credits_nano)
    .where(accounts.c.id.in_(bindparam("account_ids", expanding=True)))
    .order_by(
        accounts.c.tenant_id.is_(None),
        accounts.c.tenant_id,
        case((accounts.c.kind == AccountKind.TENANT_CREDIT, 0), else_=1),
        accounts.c.id,
    )
    .with_for_update(key_share=True),
    listed="account_ids",
)


def _locked(connection: Connection, chosen: Collection[Account]) -> dict[str, Sides]:
    rows = _LOCKED.rows(connection, {"account_ids": [account.id for account in chosen]})
    return {row.id: Sides(row.debits_nano, row.credits_nano) for row in rows}


def _create(connection: Connection, account: Account) -> None:
    insert_once(
        connection,
        accounts,
        {
            "id": account.id,
            "tenant_id": account.tenant_id,
            "kind": account.kind.value,
            "currency": account.currency,
            "reviewer_id": account.reviewer_id,
            "debits_nano": 0,
            "credits_nano": 0,
        },
    )
