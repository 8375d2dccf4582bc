"""What the provider is to be told: queued with what decides it, sent in order, each thing once.

A row's idempotency key is made of what it is about and its generation, never of the time. An
answer that did not come is asked for again under the same key while the provider still knows it
(24 hours); after that, and after a fault that the provider keeps under the key, the object is
looked up first, and only where there is none the row goes out again, under the next generation.
So is what has waited for as long without being tried: this database may be a restored backup of
one that tried it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Engine, and_, func, or_, select, true, update

from billing.payments.provider import Busy, Faulted, Provider, Refused, Unanswered
from billing.payments.tables import (
    payment_accounts,
    payment_objects,
    payment_outbox,
    top_ups,
)
from billing.rows import insert_once
from billing.turns import turns
from metering import clock
from metering.database import snapshot, transaction

SECOND_US = 10**6
HOUR_US = 3600 * SECOND_US
WINDOW_US = 23 * HOUR_US  # the provider promises 24: an hour for clocks that differ
WAIT_US_MAX = HOUR_US
SHOWN = 1000
# A person asks for these, and for one again that was told before a backup was restored.
ASKED = ("customer", "refund")
# Nothing waits for these: refused, they hold up no other row.
ALONE = ("recharge", "refund", "meter", "credit_note", "paid_outside", "give_up")
# What an action makes, for those that come after it, and the objects it needs, by its body's name.
MAKES = {"customer": "customer", "invoice": "invoice", "recharge": "intent", "refund": "refund"}


@dataclass(frozen=True, slots=True)
class Row:
    """One thing to be told."""

    seq: int
    tenant_id: str
    action: str
    subject: str
    body: dict[str, Any]
    generation: int
    attempts: int
    look_first: bool

    @property
    def key(self) -> str:
        """The idempotency key: the same for every attempt of a generation."""
        return f"dflash/{self.action}/{self.subject}/{self.generation}"


@dataclass(frozen=True, slots=True)
class OpenRow:
    """A row that was not sent, as a person looks at it."""

    seq: int
    tenant_id: str
    action: str
    subject: str
    state: str
    attempts: int
    created_at_us: int
    next_try_at_us: int
    error: str | None


def enqueue(
    connection: Connection, tenant_id: str, action: str, subject: str, body: Mapping[str, Any]
) -> bool:
    """Queue one thing within the transaction that decides it; false if it was queued before.

    A value `{"object": kind, "of": subject}` in the body stands for the provider's id of an object
    that an earlier row makes.
    """
    now = clock.now_us()
    if is_queued(connection, action, subject):
        return False
    connection.execute(
        payment_outbox.insert().values(
            tenant_id=tenant_id,
            action=action,
            subject=subject,
            body=json.dumps(body, sort_keys=True),
            state="waiting",
            generation=0,
            attempts=0,
            created_at_us=now,
            next_try_at_us=now,
        )
    )
    return True


def is_queued(connection: Connection, action: str, subject: str) -> bool:
    """Whether this was ever queued, sent or not."""
    known = connection.scalar(
        select(payment_outbox.c.seq).where(
            payment_outbox.c.action == action, payment_outbox.c.subject == subject
        )
    )
    return known is not None


def push(database: Engine, provider: Provider, tenant_id: str | None = None) -> int:
    """Send what is due, of one tenant or of all, in each tenant's order; how many rows were sent.

    Two that push at once are held apart by the idempotency keys, and only waste requests. Raises an
    ExceptionGroup of what no row could be blamed for, once the other tenants' are sent.
    """
    sent = 0
    blocked: set[str] = set()
    with turns("pushes") as each:
        while (row := _next(database, tenant_id, blocked)) is not None:
            blocked.add(row.tenant_id)
            with each.of(row.tenant_id):
                state = _send(database, provider, row)
                sent += state == "sent"
                if state != "waiting":
                    blocked.remove(row.tenant_id)
    return sent


def open_rows(connection: Connection) -> list[OpenRow]:
    """What waits, or was refused and not dropped since, oldest first."""
    names = (payment_outbox.c[name] for name in OpenRow.__slots__)
    query = select(*names).where(
        payment_outbox.c.state != "sent", payment_outbox.c.dropped_at_us.is_(None)
    )
    rows = connection.execute(query.order_by(payment_outbox.c.seq).limit(SHOWN))
    return [OpenRow(*row) for row in rows]


def object_id(connection: Connection, kind: str, subject: str) -> str | None:
    """The provider's id of one of our objects, or null."""
    found: str | None = connection.scalar(
        select(payment_objects.c.provider_id).where(
            payment_objects.c.kind == kind, payment_objects.c.subject == subject
        )
    )
    return found


def subject_of(connection: Connection, kind: str, provider_id: str) -> str | None:
    """Our id of one of the provider's objects, or null."""
    found: str | None = connection.scalar(
        select(payment_objects.c.subject).where(
            payment_objects.c.kind == kind, payment_objects.c.provider_id == provider_id
        )
    )
    return found


def remember(connection: Connection, kind: str, subject: str, provider_id: str) -> None:
    """Note which object of the provider stands for ours. Again, it changes nothing."""
    insert_once(
        connection,
        payment_objects,
        {"kind": kind, "subject": subject, "provider_id": provider_id},
    )


def _next(database: Engine, tenant_id: str | None, blocked: set[str]) -> Row | None:
    """The oldest open row of a tenant that is not blocked, if it is due."""
    outbox = payment_outbox.c
    first = (
        select(func.min(outbox.seq))
        .where(
            or_(
                outbox.state == "waiting",
                and_(
                    outbox.state == "refused",
                    outbox.action.not_in(ALONE),
                    outbox.dropped_at_us.is_(None),
                ),
            )
        )
        .group_by(outbox.tenant_id)
        .scalar_subquery()
    )
    with snapshot(database) as connection:
        found = connection.execute(
            select(payment_outbox)
            .where(
                outbox.seq.in_(first),
                outbox.state == "waiting",
                outbox.next_try_at_us <= clock.now_us(),
                outbox.tenant_id.not_in(blocked),
                true() if tenant_id is None else outbox.tenant_id == tenant_id,
            )
            .order_by(outbox.seq)
            .limit(1)
        ).one_or_none()
        if found is None:
            return None
        body = _resolved(connection, json.loads(found.body))
    tried = found.first_tried_at_us
    if tried is None:
        tried = _since(found.action, found.created_at_us, body)
    stale = clock.now_us() - tried >= WINDOW_US
    faulted = (found.error or "").startswith("faulted")
    return Row(
        found.seq,
        found.tenant_id,
        found.action,
        found.subject,
        body,
        found.generation,
        found.attempts,
        stale or faulted or (found.action in ASKED and not found.attempts),
    )


def _since(action: str, created_at_us: int, body: Mapping[str, Any]) -> int:
    """Since when this can have been told, by this database or by one that it is a backup of."""
    # An hour of a meter is the same whoever counts it, so that it may have been told before it was
    # queued here.
    return int(body["at_s"]) * SECOND_US if action == "meter" else created_at_us


def _resolved(connection: Connection, body: dict[str, Any]) -> dict[str, Any]:
    resolved = {}
    for name, value in body.items():
        if isinstance(value, dict):
            value = object_id(connection, value["object"], value["of"])  # noqa: PLW2901
        resolved[name] = value
    return resolved


def _send(database: Engine, provider: Provider, row: Row) -> str:
    """Send one row and keep the answer; its state after that."""
    now = clock.now_us()
    with transaction(database) as connection:
        # Before it goes out, so that a crash after it leaves a row that was tried.
        connection.execute(
            update(payment_outbox)
            .where(payment_outbox.c.seq == row.seq)
            .values(
                attempts=payment_outbox.c.attempts + 1,
                first_tried_at_us=func.coalesce(payment_outbox.c.first_tried_at_us, now),
            )
        )
    try:
        if row.look_first:
            found = provider.find(row.action, row.subject, row.body)
            if found is None:
                return _send(database, provider, _anew(database, row))
        else:
            if row.action == "recharge":
                _nothing_forgotten(database, provider, row)
            found = provider.do(row.action, row.subject, row.body, row.key)
    except (Unanswered, Busy) as error:
        # A look that failed is a look to be taken again: the note of the fault stays.
        _later(database, row, "faulted" if row.look_first else "unanswered", error)
        return "waiting"
    except Faulted as error:
        _later(database, row, "faulted", error)
        return "waiting"
    except Refused as error:
        _refused(database, row, error)
        return "refused"
    with transaction(database) as connection:
        connection.execute(
            update(payment_outbox)
            .where(payment_outbox.c.seq == row.seq)
            .values(state="sent", provider_id=found, error=None)
        )
        if row.action in MAKES:
            remember(connection, MAKES[row.action], row.subject, found)
    return "sent"


def _nothing_forgotten(database: Engine, provider: Provider, row: Row) -> None:
    """Raises Refused where the customer has paid what nobody here knows of: a backup was restored,
    and the credit may have run low only because its purchase was forgotten.
    """
    paid = [each for each in provider.payments(row.body["customer"]) if each.status != "failed"]
    with snapshot(database) as connection:
        for each in paid:
            if each.subject is None or subject_of(connection, "intent", each.id) is not None:
                continue
            ours = select(top_ups.c.id).where(top_ups.c.id == each.subject)
            if connection.scalar(ours) is None:
                raise Refused(f"{each.id} was paid and is in no book here: book it first")


def _anew(database: Engine, row: Row) -> Row:
    """It was certainly never done: the row under its next key."""
    generation = row.generation + 1
    with transaction(database) as connection:
        connection.execute(
            update(payment_outbox)
            .where(payment_outbox.c.seq == row.seq)
            .values(generation=generation, first_tried_at_us=None, error=None)
        )
    return replace(row, generation=generation, look_first=False)


def _later(database: Engine, row: Row, kind: str, error: Exception) -> None:
    wait_us = min(WAIT_US_MAX, SECOND_US << min(row.attempts, 12))
    with transaction(database) as connection:
        connection.execute(
            update(payment_outbox)
            .where(payment_outbox.c.seq == row.seq)
            .values(next_try_at_us=clock.now_us() + wait_us, error=f"{kind}: {error}"[:500])
        )


def _refused(database: Engine, row: Row, error: Exception) -> None:
    with transaction(database) as connection:
        connection.execute(
            update(payment_outbox)
            .where(payment_outbox.c.seq == row.seq, payment_outbox.c.state == "waiting")
            .values(state="refused", error=f"refused: {error}"[:500])
        )
        if row.action == "recharge":
            connection.execute(
                update(top_ups)
                .where(top_ups.c.id == row.subject, top_ups.c.state == "open")
                .values(state="failed")
            )
            connection.execute(
                update(payment_accounts)
                .where(payment_accounts.c.tenant_id == row.tenant_id)
                .values(recharge_failed=True)
            )
