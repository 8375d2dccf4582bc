"""Credit bought: by a person on a Checkout page, or by itself (`recharging`).

open -> paid | failed. Credit is granted once, when the provider says that the money came; what
came is granted, whatever was asked for. A refund goes back the same way, as far as credit goes.
"""

from __future__ import annotations

from dataclasses import dataclass

import uuid_utils
from sqlalchemy import Connection, Engine, insert, select, update

from billing import notices
from billing.errors import InvalidAmount, PaymentConflict, PaymentsDisabled, ProviderFailed
from billing.invoices.minor_units import format_minor, minor_nano
from billing.ledger import alerts, funding
from billing.ledger.accounts import Account, AccountKind, lock_tenant
from billing.ledger.balances import currency_of
from billing.ledger.posting import Transfer, TransferKind, post
from billing.money import format_nano
from billing.notices import NoticeType
from billing.payments import collection, outbox
from billing.payments.provider import Provider, asking
from billing.payments.tables import payment_outbox, top_ups
from billing.tables import transfers
from metering import clock
from metering.database import transaction

SHOWN = 50


@dataclass(frozen=True, slots=True)
class TopUp:
    """One purchase of credit."""

    id: str
    tenant_id: str
    reference: str
    kind: str
    currency: str
    amount_minor: int
    minor_nano: int
    state: str
    url: str | None
    created_at_us: int


def begin(
    database: Engine,
    provider: Provider,
    *,
    tenant_id: str,
    amount_minor: int,
    reference: str,
    return_url: str,
) -> TopUp:
    """Open a page where a person pays; the same reference again gives the same page.

    Raises PaymentsDisabled, PaymentConflict for a reference with another amount, ProviderRefused,
    or ProviderFailed: then the same call may be made again.
    """
    if amount_minor <= 0:
        raise InvalidAmount("a top-up is above zero")
    outbox.push(database, provider, tenant_id)  # the customer has to be there
    with transaction(database) as connection:
        currency = currency_of(connection, tenant_id)
        if collection.account(connection, tenant_id) is None:
            raise PaymentsDisabled(f"{tenant_id} does not pay through the provider")
        lock_tenant(connection, tenant_id, currency)
        wanted = add(
            connection,
            tenant_id,
            reference,
            kind="checkout",
            currency=currency,
            amount_minor=amount_minor,
        )
        customer = outbox.object_id(connection, "customer", tenant_id)
    if wanted.url is not None or wanted.state != "open":
        return wanted
    if customer is None:
        raise ProviderFailed("the provider does not know this customer yet; try again")
    body = {
        "customer": customer,
        "currency": currency.lower(),
        "amount": amount_minor,
        "description": "Prepaid credit",
        "success_url": return_url,
        "cancel_url": return_url,
    }
    with asking():
        session_id, url = provider.checkout(wanted.id, body, f"dflash/checkout/{wanted.id}/0")
    with transaction(database) as connection:
        outbox.remember(connection, "session", wanted.id, session_id)
        connection.execute(update(top_ups).where(top_ups.c.id == wanted.id).values(url=url))
        return require(connection, wanted.id)


def take_in(connection: Connection, found: TopUp, cause: str, amount_minor: int) -> bool:
    """Book money that came into the tenant's credit, once per cause."""
    move = Transfer(
        id=cause,
        kind=TransferKind.PAYMENT,
        debit=Account(None, AccountKind.PAYMENT_CLEARING, found.currency),
        credit=Account(found.tenant_id, AccountKind.TENANT_CREDIT, found.currency),
        amount_nano=amount_minor * found.minor_nano,
        event_time_us=clock.now_us(),
    )
    booked = post(connection, cause, [move])
    alerts.balance(connection, found.tenant_id)
    return booked


def received(connection: Connection, top_up_id: str, amount_minor: int) -> bool:
    """Grant what came, once; false if it was granted before."""
    found = require(connection, top_up_id)
    lock_tenant(connection, found.tenant_id, found.currency)
    if require(connection, top_up_id).state == "paid":
        return False
    take_in(connection, found, f"top_up/{found.id}", amount_minor)
    connection.execute(
        update(top_ups)
        .where(top_ups.c.id == found.id)
        .values(state="paid", amount_minor=amount_minor)
    )
    bought = format_minor(amount_minor, found.minor_nano)
    data = {"top_up_id": found.id, "amount": bought, "currency": found.currency}
    notices.announce(connection, found.tenant_id, NoticeType.TOP_UP_PAID, found.id, data)
    return True


def failed(connection: Connection, top_up_id: str) -> bool:
    """Note that nobody paid, and stop recharging after a failed recharge; false if it was noted
    before, or paid.
    """
    found = require(connection, top_up_id)
    changed = connection.execute(
        update(top_ups)
        .where(top_ups.c.id == found.id, top_ups.c.state == "open")
        .values(state="failed")
    )
    if found.kind == "recharge" and changed.rowcount:
        collection.stop_recharging(connection, found.tenant_id)
    return bool(changed.rowcount)


def refund(connection: Connection, top_up_id: str, amount_minor: int, reference: str) -> bool:
    """Take credit back and queue its refund, once per reference; false if that was done before.

    Raises PaymentConflict for a top-up that was not paid, whose credit was spent, or of which all
    refunds asked for here would come to more than was paid, and for a reference that had another
    amount. What somebody refunded at the provider's own pages only the provider counts: it refuses
    what is left of it no more (`refusals`).
    """
    found = require(connection, top_up_id)
    refund_id = f"{found.id}/{reference}"
    lock_tenant(connection, found.tenant_id, found.currency)
    intent = outbox.object_id(connection, "intent", found.id)
    if found.state != "paid" or intent is None:
        raise PaymentConflict("only a top-up that was paid can be refunded")
    nano = amount_minor * found.minor_nano
    if before := moved(connection, f"refund/{refund_id}"):
        if sum(before.values()) != nano:
            raise PaymentConflict(f"{reference} refunded another amount before")
        return False
    if not 0 < nano <= found.amount_minor * found.minor_nano - _refunded(connection, found):
        raise PaymentConflict("more than what was paid cannot be refunded")
    move_back(connection, found, f"refund/{refund_id}", amount_minor, lossy=False)
    body = {"intent": intent, "amount": amount_minor}
    outbox.enqueue(connection, found.tenant_id, "refund", refund_id, body)
    return True


def move_back(
    connection: Connection, found: TopUp, cause: str, amount_minor: int, *, lossy: bool
) -> bool:
    """Book money that left again, once per cause. What of it was spent is written off if `lossy`;
    otherwise it raises PaymentConflict.
    """
    credit = lock_tenant(connection, found.tenant_id, found.currency)
    available = max(0, funding.plain_credit(connection, found.tenant_id, credit))
    nano = amount_minor * found.minor_nano
    if moved(connection, cause):
        return False
    if nano > available and not lossy:
        raise PaymentConflict(f"only {format_nano(available)} of the credit was not spent")
    lost = max(0, nano - available)
    clearing = Account(None, AccountKind.PAYMENT_CLEARING, found.currency)
    now = clock.now_us()
    moves = [
        Transfer(
            f"{cause}/{name}",
            kind,
            Account(found.tenant_id, source, found.currency),
            clearing,
            part,
            now,
        )
        for name, kind, source, part in (
            ("credit", TransferKind.PAYMENT, AccountKind.TENANT_CREDIT, nano - lost),
            ("lost", TransferKind.WRITE_OFF, AccountKind.WRITE_OFF, lost),
        )
    ]
    booked = post(connection, cause, moves)
    alerts.balance(connection, found.tenant_id)
    return booked


def restore(connection: Connection, found: TopUp, taken: str, cause: str) -> bool:
    """Book back what `move_back` took, once per cause: into credit only what came from there."""
    clearing = Account(None, AccountKind.PAYMENT_CLEARING, found.currency)
    before, now = moved(connection, taken), clock.now_us()
    moves = [
        Transfer(name, kind, clearing, Account(found.tenant_id, target, found.currency), nano, now)
        for name, kind, target, nano in (
            (cause, TransferKind.PAYMENT, AccountKind.TENANT_CREDIT, before.get("credit", 0)),
            (f"{cause}/lost", TransferKind.REVERSAL, AccountKind.WRITE_OFF, before.get("lost", 0)),
        )
    ]
    booked = post(connection, cause, moves)
    alerts.balance(connection, found.tenant_id)
    return booked


def find(connection: Connection, top_up_id: str) -> TopUp | None:
    """A top-up, or null."""
    row = connection.execute(select(top_ups).where(top_ups.c.id == top_up_id)).one_or_none()
    return None if row is None else TopUp(**row._mapping)


def of_tenant(connection: Connection, tenant_id: str) -> list[TopUp]:
    """A tenant's top-ups, newest first."""
    rows = connection.execute(
        select(top_ups)
        .where(top_ups.c.tenant_id == tenant_id)
        .order_by(top_ups.c.created_at_us.desc(), top_ups.c.id.desc())
        .limit(SHOWN)
    )
    return [TopUp(**row._mapping) for row in rows]


def add(
    connection: Connection,
    tenant_id: str,
    reference: str,
    *,
    kind: str,
    currency: str,
    amount_minor: int,
) -> TopUp:
    """A top-up by its reference, made where there is none; raises PaymentConflict for another."""
    known = connection.scalar(
        select(top_ups.c.id).where(
            top_ups.c.tenant_id == tenant_id, top_ups.c.reference == reference
        )
    )
    if known is not None:
        found = require(connection, known)
        if found.amount_minor != amount_minor or found.kind != kind:
            raise PaymentConflict(f"{reference} is a top-up of another amount")
        return found
    made = TopUp(
        id=f"top_{uuid_utils.uuid7().hex}",
        tenant_id=tenant_id,
        reference=reference,
        kind=kind,
        currency=currency,
        amount_minor=amount_minor,
        minor_nano=minor_nano(currency),
        state="open",
        url=None,
        created_at_us=clock.now_us(),
    )
    names = TopUp.__slots__
    connection.execute(insert(top_ups).values({name: getattr(made, name) for name in names}))
    return made


def require(connection: Connection, top_up_id: str) -> TopUp:
    """A top-up; raises PaymentConflict when there is none."""
    found = find(connection, top_up_id)
    if found is None:
        raise PaymentConflict(f"no top-up {top_up_id}")
    return found


def moved(connection: Connection, cause: str) -> dict[str, int]:
    """What `move_back` booked for a cause, in nano: from "credit", and what was "lost".

    Of a cause that `restore` booked: what came back, by whatever names.
    """
    rows = connection.execute(
        select(transfers.c.id, transfers.c.amount_nano).where(transfers.c.transaction_id == cause)
    )
    return {name.rpartition("/")[2]: amount for name, amount in rows}


def _refunded(connection: Connection, found: TopUp) -> int:
    """All refunds of a top-up that were asked for, less those that failed, in nano."""
    asked = connection.scalars(
        select(payment_outbox.c.subject).where(
            payment_outbox.c.tenant_id == found.tenant_id,
            payment_outbox.c.action == "refund",
            payment_outbox.c.subject.startswith(f"{found.id}/", autoescape=True),
        )
    )
    return sum(
        sum(moved(connection, f"refund/{each}").values())
        - sum(moved(connection, f"refund/{each}/failed").values())
        for each in asked.all()
    )
