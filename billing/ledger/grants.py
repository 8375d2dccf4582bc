"""Grants: credit with an order and a term, paid for or promotional.

Paid credit comes from cash, and what of it expires is breakage. Promotional credit is a discount
given in advance: it comes out of what is earned with the tenant, and goes back there when it
expires, so that spending it earns nothing. A grant is a lot of the tenant's credit, not an account.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, func, insert, select, update

from billing import credit_tables
from billing.errors import (
    InvalidAmount,
    InvalidGrant,
    NothingToReverse,
    TransferConflict,
    UnknownGrant,
)
from billing.ledger import alerts
from billing.ledger.accounts import Account, AccountKind, lock_tenant, try_lock_tenant
from billing.ledger.balances import currency_of
from billing.ledger.funding import ACCOUNTS, PRIORITY_DEFAULT
from billing.ledger.posting import Transfer, TransferKind, post
from billing.money import format_nano
from billing.notices import NoticeType, announce
from billing.tables import transfers
from metering import clock

PRIORITY_MAX = 1000
_grants = credit_tables.grants


@dataclass(frozen=True, slots=True)
class Grant:
    """A lot of credit. `remaining_nano` is neither spent nor held by a live request."""

    id: str
    tenant_id: str
    currency: str
    kind: str  # "paid" or "promotional"
    priority: int  # lower is spent first; plain credit is at `PRIORITY_DEFAULT`
    amount_nano: int
    remaining_nano: int
    effective_from_us: int
    expires_at_us: int | None
    created_at_us: int


def issue(
    connection: Connection,
    tenant_id: str,
    amount_nano: int,
    cause_id: str,
    *,
    promotional: bool = False,
    priority: int = PRIORITY_DEFAULT,
    effective_from_us: int | None = None,
    expires_at_us: int | None = None,
) -> bool:
    """Add a grant, once per cause; false if this cause was booked before.

    Raises UnknownTenant, InvalidAmount, InvalidGrant, or TransferConflict when the cause was booked
    with another amount, on other terms or from elsewhere.
    """
    if amount_nano <= 0:
        raise InvalidAmount("a grant must be above zero")
    if not 0 <= priority <= PRIORITY_MAX:
        raise InvalidGrant(f"a priority is from 0 to {PRIORITY_MAX}; the lowest is spent first")
    currency = currency_of(connection, tenant_id)
    lock_tenant(connection, tenant_id, currency)
    now = clock.now_us()
    effective = now if effective_from_us is None else effective_from_us
    cause = f"grant/{tenant_id}/{cause_id}"
    # The same command is the same grant for good, though it may have expired since.
    known = select(_grants.c.id).where(_grants.c.id == cause)
    if (
        expires_at_us is not None
        and expires_at_us <= max(effective, now)
        and connection.scalar(known) is None
    ):
        raise InvalidGrant("a grant expires after it begins, and in the future")
    kind = "promotional" if promotional else "paid"
    origin = (
        Account(tenant_id, AccountKind.EARNINGS, currency)
        if promotional
        else Account(None, AccountKind.CASH, currency)
    )
    booked = post(
        connection,
        cause,
        [
            Transfer(
                id=cause,
                kind=TransferKind.GRANT,
                debit=origin,
                credit=Account(tenant_id, ACCOUNTS[kind], currency),
                amount_nano=amount_nano,
                event_time_us=now,
            )
        ],
    )
    if booked:
        connection.execute(
            insert(_grants).values(
                id=cause,
                tenant_id=tenant_id,
                currency=currency,
                kind=kind,
                priority=priority,
                amount_nano=amount_nano,
                remaining_nano=amount_nano,
                effective_from_us=effective,
                expires_at_us=expires_at_us,
                created_at_us=now,
            )
        )
        alerts.balance(connection, tenant_id)
        return True
    before = connection.execute(select(_grants).where(_grants.c.id == cause)).one_or_none()
    if (
        before is None
        or (before.priority, before.expires_at_us) != (priority, expires_at_us)
        or effective_from_us not in (None, before.effective_from_us)
    ):
        raise TransferConflict(f"{cause} was granted before on other terms")
    return False


def listing(connection: Connection, tenant_id: str) -> list[Grant]:
    """A tenant's grants, in the order in which they are spent; expired and used ones too."""
    rows = connection.execute(select(_grants).where(_grants.c.tenant_id == tenant_id)).all()
    ordered = sorted(
        rows,
        key=lambda row: (
            row.priority,
            row.expires_at_us is None,
            row.expires_at_us or 0,
            row.created_at_us,
            row.id,
        ),
    )
    return [Grant(**row._mapping) for row in ordered]


def reverse(connection: Connection, tenant_id: str, cause_id: str) -> Grant:
    """Take back what is left of a grant that was a mistake, by a transfer that cites it.

    What requests have spent or hold of it stays with them. Raises UnknownGrant, or
    NothingToReverse when nothing of it is left.
    """
    currency = currency_of(connection, tenant_id)
    lock_tenant(connection, tenant_id, currency)
    found = _find(connection, tenant_id, f"grant/{tenant_id}/{cause_id}")
    if not found.remaining_nano:
        raise NothingToReverse(f"nothing of {cause_id} is left")
    _take_out(connection, found, TransferKind.REVERSAL)
    alerts.balance(connection, tenant_id)
    return _find(connection, tenant_id, found.id)


def next_due(connection: Connection, now_us: int, after: str = "") -> str | None:
    """The first tenant after another, by their ids, with a grant to expire; null at the end."""
    found = select(_grants.c.tenant_id).where(*_late(now_us), _grants.c.tenant_id > after)
    return connection.scalar(found.order_by(_grants.c.tenant_id).limit(1))


def expire(connection: Connection, tenant_id: str, now_us: int) -> int:
    """Book out what is left of a tenant's grants past their expiry, and say how many.

    What live requests hold stays theirs; if it is released, the next sweep takes it. A tenant that
    another transaction is working on is left for later.
    """
    if not try_lock_tenant(connection, tenant_id, currency_of(connection, tenant_id)):
        return 0
    query = select(_grants).where(*_late(now_us), _grants.c.tenant_id == tenant_id)
    late = [Grant(**row._mapping) for row in connection.execute(query.order_by(_grants.c.id))]
    for grant in late:
        gone = _take_out(connection, grant, TransferKind.EXPIRY)
        announce(
            connection,
            tenant_id,
            NoticeType.GRANT_EXPIRED,
            f"{grant.id}/{now_us}",
            {
                "grant": grant.id.rpartition("/")[2],
                "kind": grant.kind,
                "expired": format_nano(gone),
                "currency": grant.currency,
            },
        )
        alerts.balance(connection, tenant_id)
    return len(late)


def _late(now_us: int) -> tuple[ColumnElement[bool], ...]:
    return _grants.c.expires_at_us <= now_us, _grants.c.remaining_nano > 0


def _take_out(connection: Connection, found: Grant, kind: TransferKind) -> int:
    """Book the rest of a grant out of the tenant's credit; how much it was."""
    if found.kind == "promotional":
        target = Account(found.tenant_id, AccountKind.EARNINGS, found.currency)
    elif kind is TransferKind.EXPIRY:
        target = Account(None, AccountKind.BREAKAGE, found.currency)
    else:
        target = Account(None, AccountKind.CASH, found.currency)
    # What a hold gave back after the first time goes out as the second.
    before = select(func.count()).where(transfers.c.reverses_id == found.id)
    cause = f"{found.id}/{kind}/{connection.scalar(before)}"
    post(
        connection,
        cause,
        [
            Transfer(
                id=cause,
                kind=kind,
                debit=Account(found.tenant_id, ACCOUNTS[found.kind], found.currency),
                credit=target,
                amount_nano=found.remaining_nano,
                event_time_us=clock.now_us(),
                reverses_id=found.id,
            )
        ],
    )
    connection.execute(update(_grants).where(_grants.c.id == found.id).values(remaining_nano=0))
    return found.remaining_nano


def _find(connection: Connection, tenant_id: str, grant_id: str) -> Grant:
    row = connection.execute(
        select(_grants).where(_grants.c.id == grant_id, _grants.c.tenant_id == tenant_id)
    ).one_or_none()
    if row is None:
        raise UnknownGrant(f"no grant {grant_id.rpartition('/')[2]!r}")
    return Grant(**row._mapping)
