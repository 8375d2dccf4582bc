"""Holds: credit reserved for a live request. pending -> posted | voided | expired, once.

A hold is a row, the transfers behind it, what it was taken from and what it counts in budgets; all
change in one transaction, under the tenant's lock. Posting less than the hold releases the rest.
A hold that expired is never revived: what its request still owes is taken anew, as far as the
tenant's means go. Budgets do not stop what is owed already.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlalchemy import Connection, Select, bindparam, func, insert, or_, select, update

from billing import budgets
from billing.errors import HoldConflict, InsufficientCredit, PaymentOverdue
from billing.ledger import funding, terms
from billing.ledger.accounts import AccountKind, lock_tenant, try_lock_tenant
from billing.ledger.funding import ByAccount, Source
from billing.ledger.hold_rows import Hold, HoldState, Settled, find
from billing.ledger.posting import Transfer, TransferKind, post
from billing.tables import holds, transfers
from metering import clock
from metering.events import FINAL_STATUSES
from metering.prepared import Prepared
from metering.tables import requests

__all__ = [
    "Hold",
    "HoldState",
    "Settled",
    "expire",
    "extend",
    "find",
    "next_due",
    "place",
    "renew",
    "settle",
    "void",
]

EXPIRED_MAX = 100  # holds released in one transaction
_PLACE = Prepared(insert(holds))
_CHANGE = Prepared(update(holds).where(holds.c.request_id == bindparam("of_request")))


def place(
    connection: Connection,
    *,
    request_id: str,
    tenant_id: str,
    currency: str,
    amount_nano: int,
    ceiling_nano: int | None,
    expires_at_us: int,
    credit_nano: int | None = None,
) -> Hold:
    """Reserve credit for a request that is about to run. Placing the same again changes nothing.

    A caller that has locked the tenant already says what credit it found, to spare the statement.
    Raises InsufficientCredit (PaymentOverdue where credit on account is paused), BudgetExhausted,
    or HoldConflict when the request has another hold; nothing is changed then.
    """
    if credit_nano is None:
        credit_nano = lock_tenant(connection, tenant_id, currency)
    hold = Hold(
        request_id,
        tenant_id,
        currency,
        amount_nano,
        ceiling_nano,
        0,
        HoldState.PENDING,
        expires_at_us,
    )
    if (stored := find(connection, request_id)) is not None:
        _same_placement(connection, stored, hold)
        return stored
    purse = funding.sources(connection, tenant_id, currency, credit_nano)
    available = funding.available(purse)
    if available < amount_nano:
        paused = terms.terms_of(connection, tenant_id).paused_at_us is not None
        refusal = PaymentOverdue if paused else InsufficientCredit
        raise refusal(amount_nano, available, currency)
    limits = budgets.applying(connection, request_id) if amount_nano else []
    budgets.check(limits, amount_nano)
    _PLACE.run(
        connection,
        {
            "request_id": request_id,
            "tenant_id": tenant_id,
            "currency": currency,
            "amount_nano": amount_nano,
            "ceiling_nano": ceiling_nano,
            "posted_nano": 0,
            "state": HoldState.PENDING.value,
            "expires_at_us": expires_at_us,
            "created_at_us": clock.now_us(),
        },
    )
    _reserve(
        connection,
        hold,
        f"{request_id}/hold",
        purse=purse,
        limits=limits,
        amount_nano=amount_nano,
    )
    return hold


def extend(
    connection: Connection, request_id: str, to_nano: int, *, at_least_nano: int | None = None
) -> Hold:
    """Raise a pending hold to `to_nano`, or to `at_least_nano` if the tenant affords no more.

    A hold that is large enough already is left as it is. Raises InsufficientCredit,
    BudgetExhausted, or HoldConflict when the hold is resolved or would pass its ceiling; nothing is
    changed then.
    """
    hold, purse = _locked(connection, request_id)
    if hold.state is not HoldState.PENDING:
        raise HoldConflict(f"the hold of {request_id} is {hold.state}")
    if to_nano <= hold.amount_nano:
        return hold
    available = funding.available(purse)
    limits = budgets.applying(connection, request_id)
    headroom = budgets.headroom(limits)
    affordable = available if headroom is None else min(available, headroom)
    wanted = to_nano
    if at_least_nano is not None and wanted - hold.amount_nano > affordable:
        wanted = at_least_nano
    more = wanted - hold.amount_nano
    if more <= 0:
        return hold
    if hold.ceiling_nano is not None and wanted > hold.ceiling_nano:
        raise HoldConflict(f"the hold of {request_id} may not pass {hold.ceiling_nano} nano")
    if more > available:
        raise InsufficientCredit(more, available, hold.currency)
    budgets.check(limits, more)
    # The amount reached names the step: raising to it twice is one step.
    _reserve(
        connection,
        hold,
        f"{request_id}/hold/{wanted}",
        purse=purse,
        limits=limits,
        amount_nano=more,
    )
    _CHANGE.run(connection, {"of_request": request_id, "amount_nano": wanted})
    return replace(hold, amount_nano=wanted)


def settle(
    connection: Connection,
    request_id: str,
    *,
    charge_nano: int,
    fee_nano: int,
    event_time_us: int,
) -> Settled:
    """Post what a request costs, release the rest, and write off what nothing covers.

    A charge above the hold first takes what the ceiling and the tenant's means still allow. The
    review fee comes first, and is paid in full or not at all. Settling again with the same amounts
    changes nothing; with others, or after the hold was voided, it raises HoldConflict.
    """
    hold, purse = _locked(connection, request_id)
    if (before := _settled_before(connection, request_id, charge_nano, fee_nano)) is not None:
        return before
    if hold.state is HoldState.VOIDED:
        if charge_nano or fee_nano:
            raise HoldConflict(f"the hold of {request_id} was voided: it charges nothing")
        return Settled(0, 0, True)
    pending = hold.state is HoldState.PENDING
    held = hold.amount_nano if pending else 0
    missing = max(0, charge_nano + fee_nano - held)
    if hold.ceiling_nano is not None:
        missing = min(missing, max(0, hold.ceiling_nano - held))
    more = min(missing, funding.available(purse))
    covered = held + more
    fee = fee_nano if fee_nano <= covered else 0
    paid = min(charge_nano, covered - fee)
    settled = Settled(paid + fee, charge_nano - paid, fee == fee_nano)

    kinds, held_account = TransferKind, hold.account(AccountKind.HOLDS)
    late = funding.draw(connection, request_id, purse, more)
    rest = funding.release(connection, request_id, covered - settled.posted_nano)
    booking = [
        *_moves(hold, TransferKind.HOLD, f"{request_id}/late_hold", late, event_time_us),
        *(
            Transfer(
                f"{request_id}/{name}",
                kind,
                debited,
                hold.account(credited),
                amount,
                event_time_us,
                request_id,
            )
            for name, kind, debited, credited, amount in (
                ("charge", kinds.CHARGE, held_account, AccountKind.EARNINGS, paid),
                ("review_fee", kinds.REVIEW_FEE, held_account, AccountKind.REVIEW_POOL, fee),
                (
                    "write_off",
                    kinds.WRITE_OFF,
                    hold.account(AccountKind.WRITE_OFF),
                    AccountKind.EARNINGS,
                    settled.written_off_nano,
                ),
            )
        ),
        *_moves(hold, TransferKind.RELEASE, f"{request_id}/release", rest, event_time_us),
    ]
    post(connection, f"{request_id}/settlement", booking)
    budgets.settle(connection, request_id, settled.posted_nano)
    if pending:
        state = HoldState.POSTED if settled.posted_nano else HoldState.VOIDED
        _resolved(connection, hold, state, covered, settled.posted_nano)
    return settled


def void(connection: Connection, request_id: str) -> Hold:
    """Release a hold whose request charges nothing. Voiding again changes nothing.

    Raises HoldConflict when the hold was posted or has expired.
    """
    hold, _ = _locked(connection, request_id)
    if hold.state is HoldState.VOIDED:
        return hold
    if hold.state is not HoldState.PENDING:
        raise HoldConflict(f"the hold of {request_id} is {hold.state}")
    return _released(connection, hold, HoldState.VOIDED)


def renew(connection: Connection, request_ids: Iterable[str], expires_at_us: int) -> None:
    """Put off the expiry of live requests' holds; resolved ones and shorter terms are ignored.

    A hold that another transaction is changing is left for the next time: renewing never waits.
    """
    free = (
        select(holds.c.request_id)
        .where(holds.c.request_id.in_(list(request_ids)))
        .where(holds.c.state == HoldState.PENDING)
        .where(holds.c.expires_at_us < expires_at_us)
        .with_for_update(skip_locked=True, key_share=True)
    )
    connection.execute(
        update(holds)
        .where(holds.c.request_id.in_(list(connection.scalars(free))))
        .values(expires_at_us=expires_at_us)
    )


def next_due(connection: Connection, now_us: int, after: str = "") -> str | None:
    """The first tenant after another, by their ids, with an orphaned hold; null at the end."""
    found = _orphans(now_us).where(holds.c.tenant_id > after)
    row = connection.execute(found.order_by(holds.c.tenant_id).limit(1)).first()
    return None if row is None else str(row.tenant_id)


def expire(connection: Connection, tenant_id: str, now_us: int) -> int:
    """Release a tenant's orphaned holds, of final requests or past their expiry, and say how many.

    Bounded: there may be more. A tenant that another transaction is working on is left for later.
    """
    query = _orphans(now_us).where(holds.c.tenant_id == tenant_id).order_by(holds.c.request_id)
    orphans = connection.execute(query.limit(EXPIRED_MAX)).all()
    if not orphans or not try_lock_tenant(connection, tenant_id, orphans[0].currency):
        return 0
    # Read again under the lock: a hold may have been renewed or settled meanwhile.
    ids = [orphan.request_id for orphan in orphans]
    still_due = connection.scalars(query.where(holds.c.request_id.in_(ids))).all()
    for request_id in still_due:
        hold = find(connection, request_id)
        assert hold is not None
        late = hold.expires_at_us <= now_us
        _released(connection, hold, HoldState.EXPIRED if late else HoldState.VOIDED)
    return len(still_due)


def _orphans(now_us: int) -> Select[str, str, str]:
    final = [status.value for status in FINAL_STATUSES]
    return (
        select(holds.c.request_id, holds.c.tenant_id, holds.c.currency)
        .join(requests, requests.c.id == holds.c.request_id)
        .where(holds.c.state == HoldState.PENDING)
        .where(or_(holds.c.expires_at_us <= now_us, requests.c.status.in_(final)))
    )


def _locked(connection: Connection, request_id: str) -> tuple[Hold, list[Source]]:
    """The hold as it is under its tenant's lock, and what the tenant can pay from."""
    hold = find(connection, request_id)
    if hold is None:
        raise HoldConflict(f"{request_id} has no hold")
    credit_nano = lock_tenant(connection, hold.tenant_id, hold.currency)
    current = find(connection, request_id)
    assert current is not None
    return current, funding.sources(
        connection, hold.tenant_id, hold.currency, credit_nano, request_id
    )


_BOOKED = Prepared(
    select(transfers.c.id, transfers.c.amount_nano).where(
        transfers.c.transaction_id == bindparam("transaction_id")
    )
)


def _settled_before(
    connection: Connection, request_id: str, charge_nano: int, fee_nano: int
) -> Settled | None:
    rows = _BOOKED.rows(connection, {"transaction_id": f"{request_id}/settlement"})
    booked = {transfer_id.rpartition("/")[2]: amount for transfer_id, amount in rows}
    if not booked:
        return None
    paid, fee = booked.get("charge", 0), booked.get("review_fee", 0)
    written_off = booked.get("write_off", 0)
    if paid + written_off != charge_nano or fee not in (0, fee_nano):
        raise HoldConflict(f"{request_id} was settled with other amounts")
    return Settled(paid + fee, written_off, fee == fee_nano)


def _same_placement(connection: Connection, stored: Hold, wanted: Hold) -> None:
    placed = connection.scalar(
        select(func.coalesce(func.sum(transfers.c.amount_nano), 0)).where(
            transfers.c.transaction_id == f"{stored.request_id}/hold"
        )
    )
    same = (
        placed == wanted.amount_nano
        and stored.tenant_id == wanted.tenant_id
        and stored.currency == wanted.currency
        and stored.ceiling_nano == wanted.ceiling_nano
    )
    if not same:
        raise HoldConflict(f"{stored.request_id} has another hold")


def _reserve(
    connection: Connection,
    hold: Hold,
    cause: str,
    *,
    purse: list[Source],
    limits: list[budgets.Standing],
    amount_nano: int,
) -> None:
    taken = funding.draw(connection, hold.request_id, purse, amount_nano)
    post(connection, cause, _moves(hold, TransferKind.HOLD, cause, taken, clock.now_us()))
    budgets.reserve(connection, hold.request_id, limits, amount_nano)


def _moves(
    hold: Hold, kind: TransferKind, cause: str, parts: ByAccount, event_time_us: int
) -> list[Transfer]:
    """From the accounts that pay into what is held, by HOLD; back to them, by RELEASE."""
    held = hold.account(AccountKind.HOLDS)
    moves = []
    for name, account, amount in funding.names(cause, parts):
        legs = (hold.account(account), held)
        debit, credit = legs if kind is TransferKind.HOLD else reversed(legs)
        moves.append(Transfer(name, kind, debit, credit, amount, event_time_us, hold.request_id))
    return moves


def _released(connection: Connection, hold: Hold, state: HoldState) -> Hold:
    cause = f"{hold.request_id}/{state}"
    rest = funding.release(connection, hold.request_id, hold.amount_nano)
    post(connection, cause, _moves(hold, TransferKind.RELEASE, cause, rest, clock.now_us()))
    budgets.settle(connection, hold.request_id, 0)
    return _resolved(connection, hold, state, hold.amount_nano, 0)


def _resolved(
    connection: Connection, hold: Hold, state: HoldState, amount_nano: int, posted_nano: int
) -> Hold:
    _CHANGE.run(
        connection,
        {
            "of_request": hold.request_id,
            "amount_nano": amount_nano,
            "posted_nano": posted_nano,
            "state": state.value,
            "resolved_at_us": clock.now_us(),
        },
    )
    return replace(hold, amount_nano=amount_nano, posted_nano=posted_nano, state=state)
