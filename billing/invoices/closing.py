"""Closing a period: tenant by tenant, the sums read outside any lock, the writes short.

    1. a write: from now on, what is booked into the period counts as late, and its span is fixed
    2. a read:  all that the period holds, less what was billed of it
    3. a write: the invoice, its number and its bookings

What is settled between 2 and 3 is late, and billed with the next period. Between 1 and the end a
crash leaves at most a period that is closing; closing it again goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, Engine, func, select

from billing import waiting_usage
from billing.errors import InvalidPeriod, InvoiceConflict, UnknownTenant
from billing.invoices import closed_periods, draft_rows, drafting, issuing, parties, usage
from billing.invoices.drafting import Draft
from billing.invoices.tables import invoices
from billing.ledger.accounts import lock_tenant
from billing.ledger.balances import currency_of
from billing.periods import Period, month
from metering import clock
from metering.database import snapshot, transaction
from metering.tables import tenants
from metering.wording import counted

ATTEMPTS = 5

# Told of each invoice issued, by id, within the transaction that issues it.
Witness = Callable[[Connection, str], None]


def _unwitnessed(_connection: Connection, _invoice_id: str) -> None:
    """Where nobody keeps an audit log."""


class Outcome(StrEnum):
    """What closing did for a tenant."""

    ISSUED = "issued"
    DRAFTED = "drafted"  # the grace is not over
    NOTHING = "nothing to bill"
    BEFORE = "closed before"
    RUNNING = "not over yet"  # where this tenant lives
    WAITING = "left open"  # usage of it that was reported waits for its price
    FAILED = "failed"  # and kept no other tenant from being closed


@dataclass(frozen=True, slots=True)
class Closed:
    """One tenant's part of a close."""

    tenant_id: str
    outcome: Outcome
    invoice_id: str | None
    draft: Draft | None
    fault: str | None = None  # why it failed, or was left open


def close(
    database: Engine,
    label: str,
    tenant_id: str | None = None,
    witness: Witness = _unwitnessed,
    *,
    despite_waiting: bool = False,
) -> Iterator[Closed]:
    """Close a period for one tenant or for all, one after the other, yielding each.

    Until the grace is over it keeps drafts; after it, it issues, unless reported usage of the
    period waits for its price: `despite_waiting` leaves that to a later month. Closing again goes
    on where it was, and changes nothing that was issued. Of all, one that fails or is left open is
    yielded as such. Raises InvalidPeriod for what is no period, and where the one tenant that is
    asked for has not come to its end; InvoiceConflict where its usage waits.
    """
    month(label, "UTC")  # whether there is one of this name
    with snapshot(database) as connection:
        grace_us = parties.issuer(connection).grace_us
        query = select(tenants.c.id).order_by(tenants.c.id)
        chosen = list(
            connection.scalars(
                query if tenant_id is None else query.where(tenants.c.id == tenant_id)
            )
        )
    if tenant_id is not None and not chosen:
        raise UnknownTenant(f"no tenant {tenant_id!r}")
    for each in chosen:
        try:
            closed = _close(
                database, each, label, grace_us, witness, despite_waiting=despite_waiting
            )
        except Exception as error:
            if tenant_id is not None:
                raise
            fault = f"{type(error).__name__}: {error}"
            closed = Closed(each, Outcome.FAILED, None, None, fault)
        if tenant_id is not None and closed.outcome is Outcome.RUNNING:
            raise InvalidPeriod(f"{label} is not over yet where {tenant_id} lives")
        if tenant_id is not None and closed.outcome is Outcome.WAITING:
            raise InvoiceConflict(f"{label} of {tenant_id} is left open: {closed.fault}")
        yield closed


def correct(
    database: Engine, label: str, tenant_id: str, witness: Witness = _unwitnessed
) -> Closed:
    """Issue what a closed period holds beyond what was billed of it, as an invoice of its own.

    Raises InvoiceConflict when the period was not closed.
    """
    for _ in range(ATTEMPTS):
        with snapshot(database) as connection:
            period = period_of(connection, tenant_id, label)
            if not closed_periods.is_closed(connection, tenant_id, label):
                raise InvoiceConflict(f"{label} is not closed: close it instead")
            number = 1 + _corrections(connection, tenant_id, label)
            draft = drafting.correction(connection, tenant_id, period, number)
        with transaction(database) as connection:
            lock_tenant(connection, tenant_id, draft.currency)
            if drafting.standing(connection, tenant_id) == draft.standing:
                return _issue(connection, draft, witness)
    raise InvoiceConflict(f"{tenant_id}'s invoices keep changing; try again")


def preview(connection: Connection, tenant_id: str, label: str) -> Draft:
    """The invoice that closing would issue now, also of a period that still runs."""
    period = period_of(connection, tenant_id, label)
    return drafting.draft(connection, tenant_id, period, usage.projected_groups)


def period_of(connection: Connection, tenant_id: str, label: str) -> Period:
    """A tenant's period of this label; raises UnknownTenant or InvalidPeriod."""
    time_zone = connection.scalar(select(tenants.c.time_zone).where(tenants.c.id == tenant_id))
    if time_zone is None:
        raise UnknownTenant(f"no tenant {tenant_id!r}")
    return closed_periods.span(connection, tenant_id, label, time_zone)


def _close(
    database: Engine,
    tenant_id: str,
    label: str,
    grace_us: int,
    witness: Witness,
    *,
    despite_waiting: bool,
) -> Closed:
    for _ in range(ATTEMPTS):
        with snapshot(database) as connection:
            period = period_of(connection, tenant_id, label)
            if closed_periods.is_closed(connection, tenant_id, label):
                return Closed(tenant_id, Outcome.BEFORE, None, None)
            waiting = waiting_usage.in_period(connection, tenant_id, period)
        now = clock.now_us()
        if now < period.end_us:
            return Closed(tenant_id, Outcome.RUNNING, None, None)
        final = now >= period.end_us + grace_us
        if final and waiting and not despite_waiting:
            fault = f"{counted(waiting, 'reported events')} of it not rated yet"
            return Closed(tenant_id, Outcome.WAITING, None, None, fault)
        if final:
            with transaction(database) as connection:
                lock_tenant(connection, tenant_id, currency_of(connection, tenant_id))
                if period_of(connection, tenant_id, label) != period:
                    continue  # the tenant moved, or a neighbouring month was begun: look again
                closed_periods.begin(connection, tenant_id, period, now)
        with snapshot(database) as connection:
            draft = drafting.draft(connection, tenant_id, period)
        with transaction(database) as connection:
            lock_tenant(connection, tenant_id, draft.currency)
            if drafting.standing(connection, tenant_id) != draft.standing:
                continue  # another close was faster: look again
            if period_of(connection, tenant_id, label) != period:
                continue  # of a draft, whose span nothing has fixed yet
            if closed_periods.is_closed(connection, tenant_id, label):
                continue  # by another, before this draft was read
            if not final and draft.is_empty:
                draft_rows.discard(connection, draft)
                return Closed(tenant_id, Outcome.NOTHING, None, draft)
            if not final:
                return Closed(
                    tenant_id, Outcome.DRAFTED, draft_rows.store(connection, draft), draft
                )
            closed_periods.close(connection, tenant_id, label, now)
            return _issue(connection, draft, witness)
    raise InvoiceConflict(f"{tenant_id}'s invoices keep changing; try again")


def _issue(connection: Connection, draft: Draft, witness: Witness) -> Closed:
    """Issue a draft, unless there is nothing in it; either way its periods were looked at."""
    seen = [(part.period.label, part.late) for part in draft.parts]
    closed_periods.looked_at(connection, draft.tenant_id, seen)
    if draft.is_empty:
        draft_rows.discard(connection, draft)
        return Closed(draft.tenant_id, Outcome.NOTHING, None, draft)
    invoice_id = issuing.issue(connection, draft)
    witness(connection, invoice_id)
    return Closed(draft.tenant_id, Outcome.ISSUED, invoice_id, draft)


def _corrections(connection: Connection, tenant_id: str, label: str) -> int:
    """How many corrections of a period there were, voided ones too."""
    count = connection.scalar(
        select(func.count(func.distinct(invoices.c.kind))).where(
            invoices.c.tenant_id == tenant_id,
            invoices.c.period == label,
            invoices.c.kind.like("correction-%"),
        )
    )
    return int(count or 0)
