"""Booking transfers: all of a transaction or none, and each cause once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, bindparam, insert, select, update

from billing.errors import InvalidAmount, Overdraft, TransferConflict
from billing.ledger.accounts import NEVER_NEGATIVE, Account, Sides, lock
from billing.money import NANO_MAX, format_nano
from billing.tables import accounts, transfers
from metering import clock
from metering.prepared import Prepared


class TransferKind(StrEnum):
    """Why value moved."""

    GRANT = "grant"
    HOLD = "hold"
    RELEASE = "release"
    CHARGE = "charge"
    WRITE_OFF = "write_off"
    REVIEW_FEE = "review_fee"
    REVIEW_PAYABLE = "review_payable"
    REVIEW_LAPSE = "review_lapse"
    PAYOUT = "payout"  # of what a reviewer was due
    REFUND = "refund"
    INVOICE = "invoice"  # onto an invoice: what was accrued, and the period's own lines
    TAX = "tax"
    ROUNDING = "rounding"
    RETURN = "return"  # back into credit, by an invoice or a credit note
    PAYMENT = "payment"
    CREDIT_NOTE = "credit_note"
    EXPIRY = "expiry"
    REVERSAL = "reversal"


@dataclass(frozen=True, slots=True)
class Transfer:
    """`amount_nano` leaves the debited account and arrives at the credited one.

    `id` derives from the cause; `event_time_us` is when the cause happened, which decides the
    period, however late it is booked.
    """

    id: str
    kind: TransferKind
    debit: Account
    credit: Account
    amount_nano: int
    event_time_us: int
    request_id: str | None = None
    reverses_id: str | None = None


_MOVE = Prepared(
    update(accounts)
    .where(accounts.c.id == bindparam("account_id"))
    .values(
        debits_nano=accounts.c.debits_nano + bindparam("debits"),
        credits_nano=accounts.c.credits_nano + bindparam("credits"),
    )
)
_BOOK = Prepared(insert(transfers))


def post(connection: Connection, transaction_id: str, wanted: Sequence[Transfer]) -> bool:
    """Book transfers as one transaction, within the caller's; false if booked before.

    Transfers of nothing are left out. Raises Overdraft when an account that must not go negative
    would, InvalidAmount when all that ever left or reached an account would pass `NANO_MAX`, and
    TransferConflict when an id was booked with another body or by another transaction; nothing is
    changed in any of these cases.
    """
    chosen = [transfer for transfer in wanted if transfer.amount_nano]
    if not chosen:
        return False
    rows = [_to_row(transaction_id, transfer) for transfer in chosen]
    found = lock(connection, _accounts(chosen))
    # Only now, under the tenant's lock, is a concurrent booking of the same cause visible.
    if _booked(connection, transaction_id, rows):
        return False
    deltas = _deltas(chosen)
    for account, (debits, credits) in deltas.items():
        sides = found[account]
        if account.kind in NEVER_NEGATIVE and sides.balance_nano + credits - debits < 0:
            raise Overdraft(account.id, debits - credits, sides.balance_nano)
        _check_room(account, sides, debits, credits)
    _MOVE.run_each(
        connection,
        [
            {"account_id": account.id, "debits": debits, "credits": credits}
            for account, (debits, credits) in deltas.items()
        ],
    )
    booked_at_us = clock.now_us()
    _BOOK.run_each(connection, [row | {"booked_at_us": booked_at_us} for row in rows])
    return True


def _accounts(chosen: Iterable[Transfer]) -> set[Account]:
    return {account for transfer in chosen for account in (transfer.debit, transfer.credit)}


def _deltas(chosen: Iterable[Transfer]) -> dict[Account, tuple[int, int]]:
    sides: defaultdict[Account, list[int]] = defaultdict(lambda: [0, 0])
    for transfer in chosen:
        sides[transfer.debit][0] += transfer.amount_nano
        sides[transfer.credit][1] += transfer.amount_nano
    return {account: (debits, credits) for account, (debits, credits) in sides.items()}


def _check_room(account: Account, sides: Sides, debits: int, credits: int) -> None:
    """Refuse what no int64 holds: SQLite would go on in floats, and lose nanos."""
    for name, total in (
        ("debits", sides.debits_nano + debits),
        ("credits", sides.credits_nano + credits),
    ):
        if total > NANO_MAX:
            raise InvalidAmount(
                f"the {name} of {account.id} would come to {format_nano(total)} "
                f"{account.currency}; an account takes {format_nano(NANO_MAX)} in all"
            )


def _to_row(transaction_id: str, transfer: Transfer) -> dict[str, Any]:
    if transfer.amount_nano < 0:
        raise ValueError(f"{transfer.id}: reverse the accounts instead of the sign")
    if transfer.debit.currency != transfer.credit.currency:
        raise ValueError(f"{transfer.id}: {transfer.debit.id} to {transfer.credit.id}")
    return {
        "id": transfer.id,
        "transaction_id": transaction_id,
        "debit_account_id": transfer.debit.id,
        "credit_account_id": transfer.credit.id,
        "amount_nano": transfer.amount_nano,
        "currency": transfer.debit.currency,
        "kind": transfer.kind.value,
        "request_id": transfer.request_id,
        "reverses_id": transfer.reverses_id,
        "event_time_us": transfer.event_time_us,
    }


_BOOKED = Prepared(
    select(transfers).where(transfers.c.id.in_(bindparam("transfer_ids", expanding=True))),
    listed="transfer_ids",
)


def _booked(connection: Connection, transaction_id: str, rows: Sequence[dict[str, Any]]) -> bool:
    """Whether exactly these transfers are booked; raises when only some, or others, are."""
    wanted = {row["id"]: _body(row) for row in rows}
    stored = {
        row.id: _body(row._asdict())
        for row in _BOOKED.rows(connection, {"transfer_ids": list(wanted)})
    }
    if not stored:
        return False
    if stored != wanted:
        raise TransferConflict(f"{transaction_id} was booked before with another body")
    return True


def _body(row: Any) -> tuple[Any, ...]:
    """What moved and why. When is left out: a replay may come later."""
    names = (
        "transaction_id",
        "debit_account_id",
        "credit_account_id",
        "amount_nano",
        "currency",
        "kind",
        "request_id",
        "reverses_id",
    )
    return tuple(row[name] for name in names)
