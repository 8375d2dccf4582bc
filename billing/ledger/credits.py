"""Prepaid credit coming in."""

from __future__ import annotations

from sqlalchemy import Connection

from billing.errors import InvalidAmount
from billing.ledger.accounts import Account, AccountKind
from billing.ledger.balances import currency_of
from billing.ledger.posting import Transfer, TransferKind, post
from metering import clock


def grant(connection: Connection, tenant_id: str, amount_nano: int, cause_id: str) -> bool:
    """Add credit that was paid for, once per cause; false if this cause was booked before.

    Raises UnknownTenant, InvalidAmount, or TransferConflict when the cause was booked with another
    amount.
    """
    if amount_nano <= 0:
        raise InvalidAmount("a grant must be above zero")
    currency = currency_of(connection, tenant_id)
    cause = f"grant/{tenant_id}/{cause_id}"
    return post(
        connection,
        cause,
        [
            Transfer(
                id=cause,
                kind=TransferKind.GRANT,
                debit=Account(None, AccountKind.CASH, currency),
                credit=Account(tenant_id, AccountKind.TENANT_CREDIT, currency),
                amount_nano=amount_nano,
                event_time_us=clock.now_us(),
            )
        ],
    )
