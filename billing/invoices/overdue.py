"""Whether a tenant may go on buying on account: not while an invoice is unpaid for too long.

Prepaid credit is not touched, and a request that was admitted before a pause runs to its end. An
invoice that was given up pauses like one that is open: it is owed until somebody pays it.
"""

from __future__ import annotations

from sqlalchemy import Connection, Row, select

from billing import notices
from billing.invoices import parties
from billing.invoices.tables import invoices
from billing.ledger import terms
from billing.notices import NoticeType
from metering import clock

DAY_US = 86_400 * 10**6
UNPAID_STATES = ("final", "uncollectible")


def reconsider(connection: Connection, tenant_id: str) -> bool:
    """Pause a postpaid tenant's credit, or let it go on, as its invoices stand; whether that
    changed. The caller has the tenant's lock.
    """
    granted = terms.terms_of(connection, tenant_id)
    found = _unpaid_too_long(connection, tenant_id) if granted.receivable_limit_nano else None
    since_us = granted.paused_at_us
    if (found is None) == (since_us is None):
        return False
    if found is not None:
        now_us = clock.now_us()
        terms.pause(connection, tenant_id, now_us)
        told = {"invoice_id": found.id, "number": found.number}
        notices.announce(connection, tenant_id, NoticeType.CREDIT_PAUSED, str(now_us), told)
    else:
        terms.pause(connection, tenant_id, None)
        notices.announce(connection, tenant_id, NoticeType.CREDIT_RESUMED, str(since_us), {})
    return True


def _unpaid_too_long(connection: Connection, tenant_id: str) -> Row[str, str] | None:
    """The oldest invoice that is unpaid for longer than the issuer's terms allow."""
    days = parties.issuer(connection).pause_days
    if days is None:
        return None
    return connection.execute(
        select(invoices.c.id, invoices.c.number)
        .where(
            invoices.c.tenant_id == tenant_id,
            invoices.c.state.in_(UNPAID_STATES),
            invoices.c.due_at_us <= clock.now_us() - days * DAY_US,
        )
        .order_by(invoices.c.due_at_us, invoices.c.id)
        .limit(1)
    ).first()
