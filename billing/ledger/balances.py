"""What a tenant has. Reads the projections that posting keeps; changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from billing.errors import UnknownTenant
from billing.ledger import funding, terms
from billing.ledger.accounts import Account, AccountKind, of
from metering.tables import tenants


@dataclass(frozen=True, slots=True)
class Balance:
    """What a tenant can spend now, what live requests have reserved, and what it owes.

    `available_nano` is credit in force, promotional credit, and what is left of a postpaid
    tenant's limit; the last two are also given by themselves.
    """

    available_nano: int
    held_nano: int
    currency: str
    promotional_nano: int = 0
    receivable_nano: int = 0  # owed, what live requests have reserved of the limit included
    receivable_limit_nano: int = 0  # 0: prepaid


def balance(connection: Connection, tenant_id: str) -> Balance:
    """The tenant's balance; raises UnknownTenant."""
    currency = currency_of(connection, tenant_id)
    credit, held, promotional, accrued, receivable = (
        of(connection, Account(tenant_id, kind, currency))
        for kind in (
            AccountKind.TENANT_CREDIT,
            AccountKind.HOLDS,
            AccountKind.PROMOTIONAL,
            AccountKind.ACCRUED,
            AccountKind.RECEIVABLE,
        )
    )
    return Balance(
        available_nano=funding.available(funding.sources(connection, tenant_id, currency, credit)),
        held_nano=held,
        currency=currency,
        promotional_nano=promotional,
        receivable_nano=-accrued - receivable,
        receivable_limit_nano=terms.receivable_limit(connection, tenant_id),
    )


def currency_of(connection: Connection, tenant_id: str) -> str:
    """The one currency that a tenant pays in; raises UnknownTenant."""
    currency = connection.scalar(select(tenants.c.currency).where(tenants.c.id == tenant_id))
    if currency is None:
        raise UnknownTenant(f"no tenant {tenant_id!r}")
    return str(currency)
