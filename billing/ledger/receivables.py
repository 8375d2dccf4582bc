"""What a tenant owes without a hold: usage that engines which are not ours report afterwards.

It was used already, so neither credit nor a budget can refuse it; budgets count it, and what they
let through next is less.
"""

from __future__ import annotations

from sqlalchemy import Connection, insert, select

from billing import budgets
from billing.credit_tables import fundings
from billing.ledger.accounts import Account, AccountKind, lock_tenant
from billing.ledger.funding import RECEIVABLE
from billing.ledger.hold_rows import Settled
from billing.ledger.posting import Transfer, TransferKind, post
from metering.tables import requests, tenants


def charge(
    connection: Connection,
    request_id: str,
    *,
    charge_nano: int,
    fee_nano: int,
    event_time_us: int,
) -> Settled:
    """Book a charge as owed. Once per request. There is no review of it, so no fee either."""
    if fee_nano:
        raise ValueError(f"{request_id}: nobody reviews what was made elsewhere")
    row = connection.execute(
        select(requests.c.tenant_id, tenants.c.currency)
        .join(tenants, tenants.c.id == requests.c.tenant_id)
        .where(requests.c.id == request_id)
    ).one()
    lock_tenant(connection, row.tenant_id, row.currency)
    owed = Transfer(
        id=f"{request_id}/charge",
        kind=TransferKind.CHARGE,
        debit=Account(row.tenant_id, AccountKind.ACCRUED, row.currency),
        credit=Account(row.tenant_id, AccountKind.EARNINGS, row.currency),
        amount_nano=charge_nano,
        event_time_us=event_time_us,
        request_id=request_id,
    )
    if post(connection, f"{request_id}/settlement", [owed]):
        connection.execute(
            insert(fundings).values(
                request_id=request_id, source=RECEIVABLE, position=0, amount_nano=charge_nano
            )
        )
        budgets.reserve(connection, request_id, budgets.applying(connection, request_id), 0)
        budgets.settle(connection, request_id, charge_nano)
    return Settled(charge_nano, 0, True)
