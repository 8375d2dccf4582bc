"""What a tenant has. Reads the projections that posting keeps; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from billing.errors import UnknownTenant
from billing.ledger.accounts import Account, AccountKind
from billing.tables import accounts
from metering.tables import tenants


@dataclass(frozen=True, slots=True)
class Balance:
    """A tenant's prepaid credit: free to spend, and reserved by live requests."""

    available_nano: int
    held_nano: int
    currency: str


def balance(connection: Connection, tenant_id: str) -> Balance:
    """The tenant's balance; raises UnknownTenant."""
    currency = currency_of(connection, tenant_id)
    return Balance(
        available_nano=of(connection, Account(tenant_id, AccountKind.TENANT_CREDIT, currency)),
        held_nano=of(connection, Account(tenant_id, AccountKind.HOLDS, currency)),
        currency=currency,
    )


def of(connection: Connection, account: Account) -> int:
    """Credits minus debits of one account, in nano; 0 for one that was never used."""
    stored = connection.scalar(
        select(accounts.c.credits_nano - accounts.c.debits_nano).where(accounts.c.id == account.id)
    )
    return 0 if stored is None else int(stored)


def currency_of(connection: Connection, tenant_id: str) -> str:
    """The one currency that a tenant pays in; raises UnknownTenant."""
    currency = connection.scalar(select(tenants.c.currency).where(tenants.c.id == tenant_id))
    if currency is None:
        raise UnknownTenant(f"no tenant {tenant_id!r}")
    return str(currency)
