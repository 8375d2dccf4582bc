"""Reminding customers of what they owe, on the days that the issuer's terms name.

A reminder is a notice, written once for each of these days, so that running again says nothing
again. Where several days went by meanwhile, only the last one's is told.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, or_, select

from billing.credit_tables import credit_terms
from billing.invoices import issuing, overdue, parties
from billing.invoices.overdue import DAY_US, UNPAID_STATES
from billing.invoices.tables import invoices
from billing.ledger.accounts import lock_tenant
from billing.ledger.balances import currency_of
from billing.notices import NoticeType
from metering import clock
from metering.tables import tenants


@dataclass(frozen=True, slots=True)
class Reminded:
    """What one tenant was told."""

    numbers: tuple[str, ...]  # the invoices it was reminded of
    is_paused: bool  # whether anything new is had on account
    pause_changed: bool

    @property
    def is_news(self) -> bool:
        """Whether it was told anything."""
        return bool(self.numbers) or self.pause_changed


def next_due(connection: Connection, after: str = "") -> str | None:
    """The first tenant after another, by their ids, that owes or is paused; null at the end."""
    unpaid = select(invoices.c.tenant_id).where(
        invoices.c.state.in_(UNPAID_STATES), invoices.c.due_at_us <= clock.now_us()
    )
    paused = select(credit_terms.c.tenant_id).where(credit_terms.c.paused_at_us.is_not(None))
    return connection.scalar(
        select(tenants.c.id)
        .where(tenants.c.id > after, or_(tenants.c.id.in_(unpaid), tenants.c.id.in_(paused)))
        .order_by(tenants.c.id)
        .limit(1)
    )


def remind(connection: Connection, tenant_id: str) -> Reminded:
    """Remind a tenant of what is due, and pause or resume its credit."""
    lock_tenant(connection, tenant_id, currency_of(connection, tenant_id))
    days = parties.reminders(parties.issuer(connection))
    now_us = clock.now_us()
    numbers = []
    for row in connection.execute(
        select(invoices)
        .where(
            invoices.c.tenant_id == tenant_id,
            invoices.c.state == "final",
            invoices.c.due_at_us <= now_us,
        )
        .order_by(invoices.c.due_at_us, invoices.c.id)
    ).all():
        overdue_days = (now_us - row.due_at_us) // DAY_US
        past = [day for day in days if day <= overdue_days]
        if past and issuing.announce(
            connection,
            row.id,
            NoticeType.INVOICE_OVERDUE,
            cause=f"/overdue/{past[-1]}",
            days_overdue=str(overdue_days),
        ):
            numbers.append(row.number)
    changed = overdue.reconsider(connection, tenant_id)
    paused_at_us = connection.scalar(
        select(credit_terms.c.paused_at_us).where(credit_terms.c.tenant_id == tenant_id)
    )
    return Reminded(tuple(numbers), paused_at_us is not None, changed)
