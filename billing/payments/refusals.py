"""What a person does about a row that the provider refused: try it again, or let it go."""

from __future__ import annotations

import json

from sqlalchemy import Connection, Row, select, update

from billing.errors import PaymentConflict
from billing.ledger.accounts import lock_tenant
from billing.payments import collection, top_ups
from billing.payments.outbox import ALONE
from billing.payments.tables import payment_outbox
from metering import clock

# What else is told is built upon: without it, the rest would be told of nothing.
MAY_GO = (*ALONE, "void")


def retry(connection: Connection, seq: int) -> bool:
    """Let a refused row go out again, under a new key; false if it was not refused.

    A credit note says anew how its invoice stands there: it may have been paid meanwhile. Of a
    recharge, what was declined before counts no more as done.
    """
    row = _refused(connection, seq)
    if row is None:
        return False
    body = json.loads(row.body)
    if row.action == "credit_note":
        is_paid = collection.is_paid_there(connection, row.subject.partition("/")[0])
        body["outside"] = body["amount"] if is_paid else 0
    if row.action == "recharge":
        body["again"] = True
    connection.execute(
        update(payment_outbox)
        .where(payment_outbox.c.seq == seq)
        .values(
            state="waiting",
            generation=payment_outbox.c.generation + 1,
            first_tried_at_us=None,
            next_try_at_us=clock.now_us(),
            body=json.dumps(body, sort_keys=True),
        )
    )
    return True


def drop(connection: Connection, seq: int) -> bool:
    """Tell the provider no more of a refused row; false if it was not refused.

    The credit that a refund had taken is given back. Raises PaymentConflict for what later rows
    build upon.
    """
    row = _refused(connection, seq)
    if row is None:
        return False
    if row.action not in MAY_GO:
        raise PaymentConflict(f"what comes after a {row.action} is built upon it: mend its cause")
    if row.action == "refund":
        _give_back(connection, row.subject)
    connection.execute(
        update(payment_outbox)
        .where(payment_outbox.c.seq == seq)
        .values(dropped_at_us=clock.now_us())
    )
    return True


def _give_back(connection: Connection, refund_id: str) -> None:
    """Book the credit back that a refund took which the provider will not make."""
    found = top_ups.require(connection, refund_id.partition("/")[0])
    lock_tenant(connection, found.tenant_id, found.currency)
    cause = f"refund/{refund_id}"
    top_ups.restore(connection, found, cause, f"{cause}/failed")


def _refused(connection: Connection, seq: int) -> Row[int, str, str, str] | None:
    """The row, locked: else it could be sent again while its credit is given back."""
    outbox = payment_outbox.c
    return connection.execute(
        select(outbox.seq, outbox.action, outbox.subject, outbox.body)
        .where(outbox.seq == seq, outbox.state == "refused", outbox.dropped_at_us.is_(None))
        .with_for_update()
    ).one_or_none()
