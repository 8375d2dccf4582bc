"""What the provider tells us: verified, stored with its effect in one transaction, once each.

An event only says that something changed. What it changed to is looked up, so that events may come
twice, late or in any order: the effect is that of how things stand, and each effect happens once.

What bears our mark and stands for nothing here (a backup was restored) is acknowledged all the
same: the provider would send it for three days, and then to nobody. The comparison names it, and
`booking` takes it in once a person has looked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, Engine, select

from billing.invoices import issuing, paying
from billing.invoices.tables import invoices
from billing.notices import NoticeType
from billing.payments import collection, outbox, top_ups
from billing.payments.provider import (
    DisputeState,
    InvoiceState,
    PaymentState,
    Provider,
    RefundState,
    asking,
)
from billing.payments.tables import payment_webhooks
from billing.rows import insert_once
from metering import clock
from metering.database import snapshot, transaction

METHOD = "stripe"
ENDED = ("paid", "uncollectible", "void")  # nothing is collected any more
# Outcomes that book nothing of money that moved.
UNKNOWN = "ours, and not known here"
SECOND = "of a top-up that another payment has paid"
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
    effect = effect_of(database, provider, event.object_kind, event.object_id)
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


def effect_of(database: Engine, provider: Provider, object_kind: str, object_id: str) -> Effect:
    """Ask how an object stands, outside any transaction, and what follows of it here.

    Raises ProviderFailed or ProviderRefused.
    """
    kinds: dict[str, Callable[[Engine, Provider, str], Effect]] = {
        "invoice": _invoice,
        "checkout.session": _session,
        "payment_intent": _intent,
        "dispute": _dispute,
        "refund": _refund,
    }
    handler = kinds.get(object_kind)
    if handler is None:
        return lambda _connection: "ignored"
    with asking():
        return handler(database, provider, object_id)


def refund_cause(connection: Connection, found: RefundState) -> str:
    """The cause that a refund is booked by: our id of one that we asked for, else the provider's.

    Of two that bear the same id of ours, the other one is none that we asked for.
    """
    subject = found.subject
    if subject is not None and _stands_for(connection, "refund", subject, found.id):
        return f"refund/{subject}"
    return f"refund/{found.id}"


def dispute_cause(found: DisputeState) -> str:
    """The cause that a dispute is booked by."""
    return f"dispute/{found.id}"


def _stands_for(connection: Connection, kind: str, subject: str, provider_id: str) -> bool:
    """Whether no other object of the provider stands for ours."""
    return outbox.object_id(connection, kind, subject) in (None, provider_id)


def _unknown(subject: str | None) -> str:
    return "not ours" if subject is None else UNKNOWN


def _invoice(_database: Engine, provider: Provider, provider_id: str) -> Effect:
    return _of_invoice(provider.invoice(provider_id))


def _of_invoice(found: InvoiceState) -> Effect:
    def effect(connection: Connection) -> str:
        invoice_id = _known_invoice(connection, found)
        if invoice_id is None:
            return _unknown(found.subject)
        row = issuing.locked(connection, invoice_id)
        outcome = _take_over(connection, row, found)
        if found.status in ENDED:
            _settle_dunning(connection, row["tenant_id"])
        return outcome

    return effect


def _known_invoice(connection: Connection, found: InvoiceState) -> str | None:
    """Our id of a provider's invoice, or null; also where its answer to us was lost."""
    invoice_id = outbox.subject_of(connection, "invoice", found.provider_id)
    if invoice_id is None and found.subject is not None:
        invoice_id = connection.scalar(select(invoices.c.id).where(invoices.c.id == found.subject))
    return invoice_id


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
        subject = outbox.subject_of(connection, "session", provider_id)
        if subject is None and found.intent_id is not None:
            subject = outbox.subject_of(connection, "intent", found.intent_id)
        subject = subject or found.subject
        return _top_up(connection, subject, found.status, found.received_minor, found.intent_id)

    return effect


def _intent(_database: Engine, provider: Provider, provider_id: str) -> Effect:
    return _of_payment(provider.intent(provider_id))


def _of_payment(found: PaymentState) -> Effect:
    def effect(connection: Connection) -> str:
        subject = outbox.subject_of(connection, "intent", found.id) or found.subject
        known = None if subject is None else top_ups.find(connection, subject)
        if known is not None and known.kind == "checkout" and found.status == "failed":
            return "nothing to do"  # the page stays open for another card
        return _top_up(connection, subject, found.status, found.received_minor, found.id)

    return effect


def _top_up(
    connection: Connection, subject: str | None, status: str, received: int, intent: str | None
) -> str:
    if subject is None or top_ups.find(connection, subject) is None:
        return _unknown(subject)
    if status == "paid":
        if intent is not None:
            outbox.remember(connection, "intent", subject, intent)
            if not _stands_for(connection, "intent", subject, intent):
                return SECOND
        granted = top_ups.received(connection, subject, received)
        return "credited" if granted else "credited before"
    if status == "failed":
        return "failed" if top_ups.failed(connection, subject) else "nothing to do"
    return "nothing to do"


@dataclass(frozen=True, slots=True)
class _Paid:
    """What a payment was for: a top-up, an invoice, or nothing of ours. `settle` takes the payment
    in, so that what undoes it may come first.
    """

    intent_id: str | None
    invoice: InvoiceState | None
    settle: Effect
    is_disputed: bool = False

    def move_back(
        self, connection: Connection, cause: str, amount: int, restored: str | None
    ) -> str | None:
        """Take a payment back by a cause, and in again where another has restored it.

        Why not, where there is nothing to take back here.
        """
        outcome = self.settle(connection)
        if self.invoice is not None:
            invoice_id = _known_invoice(connection, self.invoice)
            if invoice_id is None:
                return outcome
            paying.take_back(connection, invoice_id, amount, method=METHOD, cause_id=cause)
            if restored is not None:
                paying.restore(
                    connection, invoice_id, taken=cause, method=METHOD, cause_id=restored
                )
            return None
        top_up = None
        if self.intent_id is not None:
            top_up = outbox.subject_of(connection, "intent", self.intent_id)
        if top_up is None:
            return outcome
        known = top_ups.require(connection, top_up)
        taken = top_ups.move_back(connection, known, cause, amount, lossy=True)
        if taken and self.is_disputed:
            collection.stop_recharging(connection, known.tenant_id)
        if restored is not None:
            top_ups.restore(connection, known, cause, restored)
        return None


def _dispute(_database: Engine, provider: Provider, provider_id: str) -> Effect:
    """Money is taken when a dispute opens, and comes back when it is won."""
    found = provider.dispute(provider_id)
    about = replace(_paid_with(provider, found.intent_id), is_disputed=True)
    cause = dispute_cause(found)
    restored = f"{cause}/won" if found.status == "won" else None

    def effect(connection: Connection) -> str:
        if found.status == "harmless":
            return "nothing to do"
        refused = about.move_back(connection, cause, found.amount_minor, restored)
        return refused or f"dispute {found.status}"

    return effect


def _refund(_database: Engine, provider: Provider, provider_id: str) -> Effect:
    """A refund that we did not ask for takes credit, too; one that failed gives it back."""
    found = provider.refund(provider_id)
    about = _paid_with(provider, found.intent_id)

    def effect(connection: Connection) -> str:
        if found.status == "open":
            return "nothing to do"
        cause = refund_cause(connection, found)
        if found.subject is not None:
            outbox.remember(connection, "refund", found.subject, found.id)
        restored = f"{cause}/failed" if found.status == "failed" else None
        refused = about.move_back(connection, cause, found.amount_minor, restored)
        return refused or ("refunded" if restored is None else "refund failed")

    return effect


def _paid_with(provider: Provider, intent_id: str | None) -> _Paid:
    """What a payment was for."""
    if intent_id is None:
        return _Paid(None, None, lambda _connection: "not ours")
    payment = provider.intent(intent_id)
    if payment.subject is None and (theirs := provider.invoice_of(intent_id)) is not None:
        invoice = provider.invoice(theirs)
        return _Paid(intent_id, invoice, _of_invoice(invoice))
    return _Paid(intent_id, None, _of_payment(payment))


def _stored(connection: Connection, event_id: str) -> str | None:
    found: str | None = connection.scalar(
        select(payment_webhooks.c.outcome).where(payment_webhooks.c.id == event_id)
    )
    return found
