"""Warning a tenant whose balance falls below the line it drew, once until it is above again."""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select, update

from billing.credit_tables import credit_terms
from billing.ledger import balances
from billing.money import format_nano
from billing.notices import NoticeType, announce
from metering import clock
from metering.prepared import Prepared

_LINE = Prepared(
    select(credit_terms.c.alert_below_nano, credit_terms.c.alerted_at_us).where(
        credit_terms.c.tenant_id == bindparam("tenant_id"),
        credit_terms.c.alert_below_nano.is_not(None),
    )
)


def balance(connection: Connection, tenant_id: str) -> None:
    """Announce a low balance, or note that it has risen. Runs under the tenant's lock."""
    row = _LINE.row(connection, {"tenant_id": tenant_id})
    if row is None:
        return
    current = balances.balance(connection, tenant_id)
    # Holds count as the tenant's own: a burst of requests is no low balance.
    left = current.available_nano + current.held_nano
    is_low = left < row.alert_below_nano
    if is_low == (row.alerted_at_us is not None):
        return
    now = clock.now_us()
    connection.execute(
        update(credit_terms)
        .where(credit_terms.c.tenant_id == tenant_id)
        .values(alerted_at_us=now if is_low else None)
    )
    if is_low:
        announce(
            connection,
            tenant_id,
            NoticeType.BALANCE_LOW,
            str(now),
            {
                "available": format_nano(current.available_nano),
                "held": format_nano(current.held_nano),
                "below": format_nano(row.alert_below_nano),
                "currency": current.currency,
            },
        )
