"""What pays for a hold: grants in their order, plain credit among them, the receivable last.

A grant is spent by priority, then earliest expiry, then age; plain credit has the default priority
and never expires. What a hold was taken from is kept beside it, so that a release, a refund or a
returned fee goes back to where it came from: the last taken first. Everything here runs under the
tenant's lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, Insert, bindparam, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from billing.credit_tables import fundings, grants
from billing.ledger import terms
from billing.ledger.accounts import Account, AccountKind, of
from billing.tables import holds
from metering import clock
from metering.prepared import Prepared

CREDIT = "credit"
PAID = "paid"  # the kind of grants that stand on the tenant's credit account
RECEIVABLE = "receivable"
PRIORITY_DEFAULT = 100
ACCOUNTS = {"paid": AccountKind.TENANT_CREDIT, "promotional": AccountKind.PROMOTIONAL}
NEVER_US = 2**63 - 1

ByAccount = dict[AccountKind, int]  # amounts in nano


@dataclass(frozen=True, slots=True)
class Source:
    """What a hold may be taken from, and how much of it is free."""

    name: str
    account: AccountKind
    free_nano: int


_GRANTS_LEFT = Prepared(
    select(grants).where(grants.c.tenant_id == bindparam("tenant_id"), grants.c.remaining_nano > 0)
)


def sources(
    connection: Connection,
    tenant_id: str,
    currency: str,
    credit_nano: int,
    request_id: str | None = None,
) -> list[Source]:
    """What the tenant can pay from now, in the order of spending. `credit_nano` is its account's.

    A grant that is not in force yet, or not any more, is no source. Neither is the receivable while
    it is paused, but for a request that was admitted before.
    """
    now = clock.now_us()
    rows = _GRANTS_LEFT.rows(connection, {"tenant_id": tenant_id})
    paid = sum(row.remaining_nano for row in rows if row.kind == PAID)
    ordered = [
        (
            (row.priority, row.expires_at_us or NEVER_US, row.created_at_us, row.id),
            Source(row.id, ACCOUNTS[row.kind], row.remaining_nano),
        )
        for row in rows
        if row.effective_from_us <= now < (row.expires_at_us or NEVER_US)
    ]
    plain = Source(CREDIT, AccountKind.TENANT_CREDIT, credit_nano - paid)
    ordered.append(((PRIORITY_DEFAULT, NEVER_US, NEVER_US, ""), plain))
    found = [source for _, source in sorted(ordered, key=lambda each: each[0])]
    granted = terms.terms_of(connection, tenant_id)
    limit = granted.receivable_limit_nano
    if limit and not _is_paused(connection, granted.paused_at_us, request_id):
        owed = -sum(
            of(connection, Account(tenant_id, kind, currency))
            for kind in (AccountKind.ACCRUED, AccountKind.RECEIVABLE)
        )
        found.append(Source(RECEIVABLE, AccountKind.ACCRUED, max(0, limit - owed)))
    return found


def plain_credit(connection: Connection, tenant_id: str, credit_nano: int) -> int:
    """What of a tenant's credit belongs to no grant; `credit_nano` is its account's."""
    granted = connection.scalar(
        select(func.coalesce(func.sum(grants.c.remaining_nano), 0)).where(
            grants.c.tenant_id == tenant_id, grants.c.kind == PAID
        )
    )
    return credit_nano - int(granted or 0)


def available(found: Iterable[Source]) -> int:
    """All that is free, in nano."""
    return sum(source.free_nano for source in found)


def draw(
    connection: Connection, request_id: str, found: Iterable[Source], amount_nano: int
) -> ByAccount:
    """Take an amount from sources in their order, for a request; what left which account.

    The caller has checked that they hold as much, and books the transfers.
    """
    taken: ByAccount = {}
    left = amount_nano
    for source in found:
        part = min(left, source.free_nano)
        if part <= 0:
            continue
        left -= part
        taken[source.account] = taken.get(source.account, 0) + part
        _add_to_grant(connection, source.name, -part)
        _add_to_funding(connection, request_id, source.name, part)
    if left:
        raise ValueError(f"{request_id}: {left} nano more were drawn than there are")
    return taken


_TAKEN = Prepared(
    select(fundings.c.source, fundings.c.amount_nano, grants.c.kind)
    .select_from(fundings)
    .outerjoin(grants, grants.c.id == fundings.c.source)
    .where(fundings.c.request_id == bindparam("request_id"))
    .order_by(fundings.c.position.desc())
)
_RETURN = Prepared(
    update(fundings)
    .where(
        fundings.c.request_id == bindparam("of_request"),
        fundings.c.source == bindparam("of_source"),
    )
    .values(amount_nano=fundings.c.amount_nano - bindparam("part_nano"))
)


def release(connection: Connection, request_id: str, amount_nano: int) -> ByAccount:
    """Return a part of what a request's hold took and no charge used; to which accounts.

    It returns to the grants it was taken from, the last taken first: to one that has expired
    meanwhile too, whose next sweep takes it. The caller books the transfers.
    """
    return _give_back(connection, request_id, amount_nano, charged=False)


def give_back(connection: Connection, request_id: str, amount_nano: int) -> ByAccount:
    """Return a part of what a request was charged, the last taken first; to which accounts.

    Paid credit whose grant has expired meanwhile returns as plain credit: it was spent in time.
    Promotional credit returns to its grant, and expires with it. The caller books the transfers.
    """
    return _give_back(connection, request_id, amount_nano, charged=True)


def _give_back(
    connection: Connection, request_id: str, amount_nano: int, *, charged: bool
) -> ByAccount:
    rows = _TAKEN.rows(connection, {"request_id": request_id})
    returned: ByAccount = {}
    left = amount_nano
    for source, held, kind in rows:
        part = min(left, held)
        if part <= 0:
            continue
        left -= part
        account = _account(source, kind)
        returned[account] = returned.get(account, 0) + part
        _RETURN.run(connection, {"of_request": request_id, "of_source": source, "part_nano": part})
        if not charged or kind == "promotional" or not _has_expired(connection, source):
            _add_to_grant(connection, source, part)
    if left:
        raise ValueError(f"{request_id}: {left} nano more would return than were taken")
    return returned


def names(cause: str, parts: Mapping[AccountKind, int]) -> list[tuple[str, AccountKind, int]]:
    """A transfer's id for each account that a movement touches; plain for the tenant's credit.

    No reference has a stroke in it, so no cause is another's with its account. Earlier bookings
    have a colon there: whether a cause was booked is asked by its transaction or its hold.
    """
    return [
        (cause if kind is AccountKind.TENANT_CREDIT else f"{cause}/{kind}", kind, amount)
        for kind, amount in parts.items()
    ]


def _is_paused(connection: Connection, since_us: int | None, request_id: str | None) -> bool:
    if since_us is None or request_id is None:
        return since_us is not None
    placed_us = connection.scalar(
        select(holds.c.created_at_us).where(holds.c.request_id == request_id)
    )
    return placed_us is None or placed_us >= since_us


def _account(source: str, kind: str | None) -> AccountKind:
    if kind is not None:
        return ACCOUNTS[kind]
    return AccountKind.ACCRUED if source == RECEIVABLE else AccountKind.TENANT_CREDIT


_EXPIRY = Prepared(select(grants.c.expires_at_us).where(grants.c.id == bindparam("grant_id")))


def _has_expired(connection: Connection, source: str) -> bool:
    expires = _EXPIRY.value(connection, {"grant_id": source})
    return expires is not None and expires <= clock.now_us()


_CREDIT = Prepared(
    update(grants)
    .where(grants.c.id == bindparam("grant_id"))
    .values(remaining_nano=grants.c.remaining_nano + bindparam("more_nano"))
)


def _add_to_grant(connection: Connection, source: str, amount_nano: int) -> None:
    if source in (CREDIT, RECEIVABLE):
        return
    _CREDIT.run(connection, {"grant_id": source, "more_nano": amount_nano})


def _add_to_funding(connection: Connection, request_id: str, source: str, amount_nano: int) -> None:
    _FUND.run(
        connection,
        {
            "request_id": request_id,
            "source": source,
            "amount_nano": amount_nano,
            "of_request": request_id,
        },
    )


def _funding(dialect: str) -> Insert:
    last = select(func.coalesce(func.max(fundings.c.position) + 1, 0)).where(
        fundings.c.request_id == bindparam("of_request")
    )
    insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
    added = insert(fundings).values(position=last.scalar_subquery())
    return added.on_conflict_do_update(
        index_elements=["request_id", "source"],
        set_={"amount_nano": fundings.c.amount_nano + added.excluded.amount_nano},
    )


_FUND = Prepared(_funding)
