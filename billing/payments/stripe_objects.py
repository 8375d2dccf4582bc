"""What Stripe's objects say, in our words."""

from __future__ import annotations

from typing import Any, cast

from billing.payments.provider import (
    CustomerState,
    DisputeState,
    InvoiceState,
    PaymentState,
    RefundState,
    TopUpState,
)

SUBJECT = "dflash_id"  # the key of our id in metadata
SUBJECT_LENGTH_MAX = 100
OURS_OUTSIDE = "payment_record"  # the kind of payments that only stand in Stripe's books
_ENDED = {"won": "won", "lost": "lost"}


def subject_of(found: Any) -> str | None:
    """Our id that an object carries, or null. What cannot be one of ours was written by hand."""
    metadata = getattr(found, "metadata", None)  # a deleted customer has none
    subject = None if metadata is None else cast("str | None", metadata.to_dict().get(SUBJECT))
    if subject is None or not 0 < len(subject) <= SUBJECT_LENGTH_MAX or "\0" in subject:
        return None
    return subject


def id_of(reference: Any) -> str | None:
    """The id of an object that another one names, or null."""
    return None if reference is None else str(reference)


def customer_state(found: Any) -> CustomerState:
    """Whom a customer stands for."""
    return CustomerState(str(found.id), subject_of(found))


def session_state(found: Any) -> TopUpState:
    """How a Checkout page stands."""
    status = "failed" if found.status == "expired" else "open"
    if found.payment_status == "paid":
        status = "paid"
    intent = id_of(found.payment_intent)
    return TopUpState(subject_of(found), status, found.amount_total or 0, intent)


def invoice_state(found: Any) -> InvoiceState:
    """How an invoice stands, its payments expanded."""
    return InvoiceState(
        provider_id=str(found.id),
        subject=subject_of(found),
        status=str(found.status),
        total_minor=found.total,
        paid_minor=sum(
            payment.amount_paid or 0
            for payment in (found.payments.data if found.payments else ())
            if payment.status == "paid" and payment.payment.type != OURS_OUTSIDE
        ),
        remaining_minor=found.amount_remaining,
        credited_minor=found.pre_payment_credit_notes_amount
        + found.post_payment_credit_notes_amount,
        payment_failed=bool(found.attempted) and found.status == "open",
        intents=tuple(
            str(payment.payment.payment_intent)
            for payment in (found.payments.data if found.payments else ())
            if payment.payment.type == "payment_intent"
        ),
    )


def payment_state(found: Any) -> PaymentState:
    """How a PaymentIntent stands."""
    status = {"succeeded": "paid", "canceled": "failed", "requires_payment_method": "failed"}
    return PaymentState(
        str(found.id),
        subject_of(found),
        status.get(str(found.status), "open"),
        found.amount_received or 0,
        str(found.currency),
        id_of(found.customer),
        found.created * 10**6,
    )


def dispute_state(found: Any) -> DisputeState:
    """How a dispute stands."""
    status = _ENDED.get(str(found.status), "open")
    # An inquiry takes nothing, unless it becomes a dispute; what was prevented is a refund.
    if str(found.status).startswith("warning_") or found.status == "prevented":
        status = "harmless"
    intent = id_of(found.payment_intent)
    return DisputeState(found.id, status, found.amount, intent, found.created * 10**6)


def refund_state(found: Any) -> RefundState:
    """How a refund stands."""
    status = {"succeeded": "paid", "failed": "failed", "canceled": "failed"}
    return RefundState(
        found.id,
        subject_of(found),
        status.get(str(found.status), "open"),
        found.amount,
        id_of(found.payment_intent),
        found.created * 10**6,
    )
