"""What the provider tells us: verified, stored with its effect in one transaction, once each.

An event only says that something changed. What it changed to is looked up, so that events may come
twice, late or in any order: the effect is that of how things stand, and each effect happens once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, select

from billing.errors import ProviderFailed, ProviderRefused
from billing.invoices import issuing, paying
from billing.invoices.tables import invoices
from billing.notices import NoticeType
from billing.payments import collection, outbox, top_ups
from billing.payments.provider import (
    Busy,
    Faulted,
    InvoiceState,
    Provider,
    ProviderEvent,
    Refused,
    Unanswered,
)
from billing.payments.tables import payment_webhooks
from billing.rows import insert_once
from metering import clock
from metering.database import snapshot, transaction

METHOD = "stripe"
ENDED = ("paid", "uncollectible", "void")  # nothing is collected any more
# What an effect did, as it is stored; applied within the transaction that stores it.
Effect = Callable[[Connection], str]


def receive(database: Engine, provider: Provider, payload: bytes, signature: str | None) -> str:
    """Take one webhook in; what came of it. The same again changes nothing.

    Answer with success only after it returns. Raises InvalidWebhook, or ProviderFailed when the
    provider cannot be asked: then nothing is stored, and the provider sends it again.
    """
    event = provider.event(payload, signature)
    with snapshot(database) as connection:
        if (before := _stored(connection, event.id)) is not None:
            return before
    effect = _looked_up(database, provider, event)
    with transaction(database) as connection:
        stored = insert_once(
            connection,
            payment_webhooks,
            {
                "id": event.id,
                "type": event.type,
                "object_id": event.object_id,
                "sent_at_us": event.sent_at_us,
                "received_at_us": clock.now_us(),
                "outcome": "",
            },
        )
        if not stored:  # it came twice at once
            return _stored(connection, event.id) or ""
        outcome = effect(connection)
        connection.execute(
            payment_webhooks.update()
            .where(payment_webhooks.c.id == event.id)
            .values(outcome=outcome)
        )
    return outcome


def _looked_up(database: Engine, provider: Provider, event: ProviderEvent) -> Effect:
    """Ask how the object stands, outside any transaction."""
    kinds: dict[str, Callable[[Engine, Provider, str], Effect]] = {
        "invoice": _invoice,
        "checkout.session": _session,
        "payment_intent": _intent,
        "dispute": _dispute,
        "refund": _refund,
    }
    handler = kinds.get(event.object_kind)
    if handler is None:
        return lambda _connection: "ignored"
    try:
        return handler(database, provider, event.object_id)
    except (Unanswered, Busy, Faulted) as error:
        raise ProviderFailed(str(error)) from error
    except Refused as error:
        raise ProviderRefused(str(error)) from error


def _invoice(_database: Engine, provider: Provider, provider_id: str) -> Effect:
    found = provider.invoice(provider_id)

    def effect(connection: Connection) -> str:
        invoice_id = outbox.subject_of(connection, "invoice", provider_id)
        if invoice_id is None and found.subject is not None:
            known = select(invoices.c.id).where(invoices.c.id == found.subject)
            invoice_id = connection.scalar(known)
        if invoice_id is None:
            return "not ours"
        row = issuing.locked(connection, invoice_id)
        outcome = _take_over(connection, row, found)
        if found.status in ENDED:
            _settle_dunning(connection, row["tenant_id"])
        return outcome

    return effect


def _take_over(connection: Connection, row: dict[str, Any], found: InvoiceState) -> str:
    """Do with an invoice of ours what became of it at the provider. Where that is what we told the
    provider to do, it is done already.
    """
    if found.status == "paid":
        # The provider's invoice is paid as a whole, so its id is the cause.
        taken = found.paid_minor > 0 and paying.pay(
            connection, row["id"], found.paid_minor, method=METHOD, cause_id=found.provider_id
        )
        return "paid" if taken else "paid before"
    if found.status == "uncollectible" and row["state"] == "final":
        issuing.give_up(connection, row["id"])
        return "uncollectible"
    if found.payment_failed and row["state"] == "final":
        collection.note_past_due(connection, row["tenant_id"], clock.now_us())
        issuing.announce(connection, row["id"], NoticeType.INVOICE_PAYMENT_FAILED)
        return "payment failed"
    return "nothing to do"


def _settle_dunning(connection: Connection, tenant_id: str) -> None:
    """A tenant without open invoices is past due no more."""
    open_one = connection.scalar(
        select(invoices.c.id)
        .where(
            invoices.c.tenant_id == tenant_id,
            invoices.c.state == "final",
            invoices.c.due_at_us < clock.now_us(),
        )
        .limit(1)
    )
    if open_one is None:
        collection.note_past_due(connection, tenant_id, None)


def _session(_database: Engine, provider: Provider, provider_id: str) -> Effect:
    found = provider.session(provider_id)

    def effect(connection: Connection) -> str:
        subject = outbox.subject_of(connection, "session", provider_id) or found.subject
        return _top_up(connection, subject, found.status, found.received_minor, found.intent_id)

    return effect


def _intent(_database: Engine, provider: Provider, provider_id: str) -> Effect:
    found = provider.intent(provider_id)

    def effect(connection: Connection) -> str:
        known = None if found.subject is None else top_ups.find(connection, found.subject)
        if known is None:
            return "not ours"
        if known.kind == "checkout" and found.status == "failed":
            return "nothing to do"  # the page stays open for another card
        return _top_up(connection, known.id, found.status, found.received_minor, provider_id)

    return effect


def _top_up(
    connection: Connection, subject: str | None, status: str, received: int, intent: str | None
) -> str:
    if subject is None or top_ups.find(connection, subject) is None:
        return "not ours"
    if status == "paid":
        if intent is not None:
            outbox.remember(connection, "intent", subject, intent)
        granted = top_ups.received(connection, subject, received)
        return "credited" if granted else "credited before"
    if status == "failed":
        return "failed" if top_ups.failed(connection, subject) else "nothing to do"
    return "nothing to do"


@dataclass(frozen=True, slots=True)
class _Paid:
    """What of ours a payment was for: a top-up, or an invoice. `settle` takes the payment in, so
    that what undoes it may come first.
    """

    top_up: str | None
    invoice: str | None
    settle: Effect

    def move_back(
        self, connection: Connection, cause: str, amount: int, restored: str | None
    ) -> None:
        """Take a payment back by a cause, and in again where another has restored it."""
        self.settle(connection)
        if self.top_up is not None:
            known = top_ups.require(connection, self.top_up)
            top_ups.move_back(connection, known, cause, amount, lossy=True)
            if restored is not None:
                top_ups.restore(connection, known, cause, restored)
        elif self.invoice is not None:
            paying.take_back(connection, self.invoice, amount, method=METHOD, cause_id=cause)
            if restored is not None:
                paying.restore(
                    connection, self.invoice, taken=cause, method=METHOD, cause_id=restored
                )


def _dispute(database: Engine, provider: Provider, provider_id: str) -> Effect:
    """Money is taken when a dispute opens, and comes back when it is won."""
    found = provider.dispute(provider_id)
    about = _paid_with(database, provider, found.intent_id)
    cause = f"dispute/{found.id}"
    restored = f"{cause}/won" if found.status == "won" else None

    def effect(connection: Connection) -> str:
        if about is None:
            return "not ours"
        if found.status == "harmless":
            return "nothing to do"
        about.move_back(connection, cause, found.amount_minor, restored)
        return f"dispute {found.status}"

    return effect


def _refund(database: Engine, provider: Provider, provider_id: str) -> Effect:
    """A refund that we did not ask for takes credit, too; one that failed gives it back."""
    found = provider.refund(provider_id)
    about = _paid_with(database, provider, found.intent_id)
    cause = f"refund/{found.subject or found.id}"
    restored = f"{cause}/failed" if found.status == "failed" else None

    def effect(connection: Connection) -> str:
        if about is None:
            return "not ours"
        if found.status == "open":
            return "nothing to do"
        about.move_back(connection, cause, found.amount_minor, restored)
        return "refunded" if restored is None else "refund failed"

    return effect


def _paid_with(database: Engine, provider: Provider, intent_id: str) -> _Paid | None:
    """What of ours a payment was for; null when it was for nothing of ours."""
    intent = provider.intent(intent_id)
    with snapshot(database) as connection:
        known = None if intent.subject is None else top_ups.find(connection, intent.subject)
    if known is not None:
        return _Paid(known.id, None, _intent(database, provider, intent_id))
    provider_invoice = provider.invoice_of(intent_id)
    if provider_invoice is None:
        return None
    with snapshot(database) as connection:
        ours = outbox.subject_of(connection, "invoice", provider_invoice)
    if ours is None:
        return None
    return _Paid(None, ours, _invoice(database, provider, provider_invoice))


def _stored(connection: Connection, event_id: str) -> str | None:
    found: str | None = connection.scalar(
        select(payment_webhooks.c.outcome).where(payment_webhooks.c.id == event_id)
    )
    return found
