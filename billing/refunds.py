"""Corrections of a charge: a refund reverses what was charged, and is signed as an adjustment.

Nothing booked is changed. A refund returns to where the charge was paid from, last taken first,
and all refunds of a request together never pass what it paid.
"""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from billing import budgets, receipts
from billing.errors import InvalidAmount, NothingToReverse, TransferConflict
from billing.ledger import alerts, funding
from billing.ledger.accounts import Account, AccountKind, lock_tenant
from billing.ledger.posting import Transfer, TransferKind, post
from billing.money import format_nano
from billing.signing import Signer
from billing.tables import receipts as receipts_table
from billing.tables import transfers
from metering import clock


def refund(
    connection: Connection,
    request_id: str,
    *,
    tenant_id: str,
    currency: str,
    amount_nano: int,
    cause: str,
) -> None:
    """Book a refund of a part of a request's charge. Once per cause; the tenant is locked."""
    parts = funding.give_back(connection, request_id, amount_nano)
    booking = [
        Transfer(
            id=name,
            kind=TransferKind.REFUND,
            debit=Account(tenant_id, AccountKind.EARNINGS, currency),
            credit=Account(tenant_id, kind, currency),
            amount_nano=amount,
            event_time_us=clock.now_us(),
            request_id=request_id,
            reverses_id=f"{request_id}/charge",
        )
        for name, kind, amount in funding.names(cause, parts)
    ]
    post(connection, cause, booking)
    budgets.give_back(connection, request_id, amount_nano)
    alerts.balance(connection, tenant_id)


def paid(connection: Connection, request_id: str) -> int:
    """What a request paid for itself, less what was refunded of it; the review's fee is apart."""
    moved = {
        kind: int(amount)
        for kind, amount in connection.execute(
            select(transfers.c.kind, func.sum(transfers.c.amount_nano))
            .where(
                transfers.c.request_id == request_id,
                transfers.c.kind.in_([TransferKind.CHARGE, TransferKind.REFUND]),
            )
            .group_by(transfers.c.kind)
        )
    }
    return moved.get(TransferKind.CHARGE, 0) - moved.get(TransferKind.REFUND, 0)


def correct(
    connection: Connection,
    signer: Signer,
    *,
    tenant_id: str,
    request_id: str,
    amount_nano: int | None,
    reference: str,
    reason: str,
) -> int:
    """Give back a part of a charge, or all of it, and sign the adjustment; what was given back.

    Once per reference: the same again gives back nothing. Raises InvalidAmount, TransferConflict
    when the reference gave back another amount, or NothingToReverse when the request has no receipt
    of this tenant, or paid less than that.
    """
    row = connection.execute(
        select(receipts_table.c.currency).where(
            receipts_table.c.request_id == request_id, receipts_table.c.tenant_id == tenant_id
        )
    ).one_or_none()
    if row is None:
        raise NothingToReverse(f"{request_id} has no charge of this tenant")
    lock_tenant(connection, tenant_id, row.currency)
    cause = f"{request_id}/correction/{reference}"
    booked = connection.scalar(
        select(func.sum(transfers.c.amount_nano)).where(transfers.c.transaction_id == cause)
    )
    if booked is not None:
        if amount_nano not in (None, int(booked)):
            raise TransferConflict(
                f"{reference} gave back {format_nano(int(booked))} {row.currency} before"
            )
        return 0
    left = paid(connection, request_id)
    amount = left if amount_nano is None else amount_nano
    if amount <= 0 and amount_nano is not None:
        raise InvalidAmount("a refund must be above zero")
    if not 0 < amount <= left:
        raise NothingToReverse(
            f"{request_id} has {format_nano(left)} {row.currency} left to refund"
        )
    refund(
        connection,
        request_id,
        tenant_id=tenant_id,
        currency=row.currency,
        amount_nano=amount,
        cause=cause,
    )
    receipts.adjust(
        connection,
        signer,
        adjustment_id=cause,
        request_id=request_id,
        reason="correction",
        amount_nano=-amount,
        note=reason,
    )
    return amount
