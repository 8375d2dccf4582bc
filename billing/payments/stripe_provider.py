"""Stripe, as `provider.Provider`. The one module that knows its SDK and its API.

Invoices are made as drafts that do nothing by themselves (`auto_advance` false, pending items
excluded), filled line by line and finalised, so that Stripe's invoice says what ours says. Every
object carries our id in its metadata, by which it is found again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import stripe as stripe_sdk

from billing.errors import InvalidWebhook
from billing.payments.provider import (
    Body,
    Busy,
    CustomerState,
    DisputeState,
    Faulted,
    InvoiceState,
    PaymentState,
    ProviderEvent,
    RefundState,
    Refused,
    TopUpState,
    Unanswered,
)
from billing.payments.stripe_objects import (
    SUBJECT,
    customer_state,
    dispute_state,
    invoice_state,
    payment_state,
    refund_state,
    session_state,
    subject_of,
)

API_VERSION = "2026-10-28.endive"
SIGNATURE_TOLERANCE_S = 300
TIMEOUT_S = 20
PAGE = 100  # the most that Stripe lists at once
# Where an invoice stands, once this was done to it.
_DONE_AT = {
    "finalise": ("open", "paid", "void", "uncollectible"),
    "void": ("void",),
    "give_up": ("uncollectible", "paid"),
    "paid_outside": ("paid",),
}


class StripeProvider:
    """Stripe under one key. May be used from several threads."""

    def __init__(
        self, api_key: str, *, webhook_secrets: Sequence[str] = (), api_base: str | None = None
    ) -> None:
        addresses: Any = {} if api_base is None else {"api": api_base}
        self._client = stripe_sdk.StripeClient(
            api_key,
            stripe_version=API_VERSION,
            base_addresses=addresses,
            max_network_retries=0,  # the outbox retries, because it knows what was asked before
            http_client=stripe_sdk.RequestsClient(timeout=TIMEOUT_S),
        )
        self._secrets = tuple(webhook_secrets)

    def do(self, action: str, subject: str, body: Body, key: str) -> str:
        """Do one thing of the outbox; see `Provider.do`."""
        doing: dict[str, Callable[[str, Body, Any], Any]] = {
            "customer": self._customer,
            "invoice": self._invoice,
            "item": self._item,
            "finalise": self._finalise,
            "void": self._void,
            "give_up": self._give_up,
            "credit_note": self._credit_note,
            "paid_outside": self._paid_outside,
            "recharge": self._recharge,
            "refund": self._refund,
        }
        with _translated():
            if action == "meter":
                return self._meter(subject, body, {"idempotency_key": key})
            return str(doing[action](subject, body, {"idempotency_key": key}).id)

    def find(self, action: str, subject: str, body: Body) -> str | None:
        """Look for what an action made; see `Provider.find`."""
        with _translated():
            return self._find(action, subject, body)

    def checkout(self, subject: str, body: Body, key: str) -> tuple[str, str]:
        """Open a Checkout page; see `Provider.checkout`."""
        params: Any = {
            "mode": "payment",
            "customer": body["customer"],
            "line_items": [
                {
                    "quantity": 1,
                    "price_data": {
                        "currency": body["currency"],
                        "unit_amount": body["amount"],
                        "product_data": {"name": body["description"]},
                    },
                }
            ],
            "success_url": body["success_url"],
            "cancel_url": body["cancel_url"],
            # The card is kept for automatic recharges.
            "payment_intent_data": {
                "metadata": {SUBJECT: subject},
                "setup_future_usage": "off_session",
            },
            "metadata": {SUBJECT: subject},
        }
        with _translated():
            made = self._client.v1.checkout.sessions.create(params, {"idempotency_key": key})
            return made.id, str(made.url)

    def invoice(self, provider_id: str) -> InvoiceState:
        """How an invoice stands at Stripe."""
        with _translated():
            found = self._client.v1.invoices.retrieve(provider_id, {"expand": ["payments"]})
        return invoice_state(found)

    def session(self, provider_id: str) -> TopUpState:
        """How a Checkout page stands."""
        with _translated():
            return session_state(self._client.v1.checkout.sessions.retrieve(provider_id))

    def intent(self, provider_id: str) -> PaymentState:
        """How a payment stands."""
        with _translated():
            found = self._client.v1.payment_intents.retrieve(provider_id)
        return payment_state(found)

    def customer(self, provider_id: str) -> CustomerState:
        """Whom a customer stands for."""
        with _translated():
            found = self._client.v1.customers.retrieve(provider_id)
        return customer_state(found)

    def dispute(self, provider_id: str) -> DisputeState:
        """How a dispute stands."""
        with _translated():
            return dispute_state(self._client.v1.disputes.retrieve(provider_id))

    def refund(self, provider_id: str) -> RefundState:
        """How a refund stands."""
        with _translated():
            return refund_state(self._client.v1.refunds.retrieve(provider_id))

    def invoices(self, customer_id: str) -> list[InvoiceState]:
        """Every invoice of a customer; see `Provider.invoices`."""
        with _translated():
            listed = self._client.v1.invoices.list(
                {"customer": customer_id, "limit": PAGE, "expand": ["data.payments"]}
            )
            return [invoice_state(found) for found in listed.auto_paging_iter()]

    def payments(self, customer_id: str) -> list[PaymentState]:
        """Every payment of a customer; see `Provider.payments`."""
        with _translated():
            listed = self._client.v1.payment_intents.list({"customer": customer_id, "limit": PAGE})
            return [payment_state(found) for found in listed.auto_paging_iter()]

    def customers(self, subject: str | None = None) -> list[CustomerState]:
        """Every customer, or one tenant's; see `Provider.customers`."""
        found: Any
        with _translated():
            if subject is None:
                found = self._client.v1.customers.list({"limit": PAGE})
            else:  # what was made in the last minute may not be found yet
                quoted = subject.replace("\\", r"\\").replace('"', r"\"")
                query = f'metadata["{SUBJECT}"]:"{quoted}"'
                found = self._client.v1.customers.search({"query": query, "limit": PAGE})
            return [customer_state(each) for each in found.auto_paging_iter()]

    def refunds(self, intent_id: str | None = None) -> list[RefundState]:
        """Every refund, or one payment's; see `Provider.refunds`."""
        with _translated():
            listed = self._client.v1.refunds.list(_of_payment(intent_id))
            return [refund_state(found) for found in listed.auto_paging_iter()]

    def disputes(self, intent_id: str | None = None) -> list[DisputeState]:
        """Every dispute, or one payment's; see `Provider.disputes`."""
        with _translated():
            listed = self._client.v1.disputes.list(_of_payment(intent_id))
            return [dispute_state(found) for found in listed.auto_paging_iter()]

    def invoice_of(self, intent_id: str) -> str | None:
        """The Stripe invoice that a payment was for."""
        params: Any = {"payment": {"type": "payment_intent", "payment_intent": intent_id}}
        with _translated():
            for paid in self._client.v1.invoice_payments.list(params).auto_paging_iter():
                return str(paid.invoice)
        return None

    def event(self, payload: bytes, signature: str | None) -> ProviderEvent:
        """Verify a webhook by any of our secrets; raises InvalidWebhook."""
        fault: Exception = InvalidWebhook("no secret of webhooks is configured")
        for secret in self._secrets:
            try:
                found = stripe_sdk.Webhook.construct_event(
                    payload, signature or "", secret, SIGNATURE_TOLERANCE_S
                )
                about: Any = found.data.object
                return ProviderEvent(
                    found.id,
                    found.type,
                    str(about["object"]),
                    str(about["id"]),
                    found.created * 10**6,
                )
            except (stripe_sdk.SignatureVerificationError, ValueError, KeyError) as error:
                fault = error
        raise InvalidWebhook(str(fault))

    def _customer(self, subject: str, body: Body, options: Any) -> Any:
        params: Any = {
            "name": body["name"],
            "email": body["email"],
            "metadata": {SUBJECT: subject},
        }
        return self._client.v1.customers.create(params, options)

    def _invoice(self, subject: str, body: Body, options: Any) -> Any:
        params: Any = {
            "customer": body["customer"],
            "currency": body["currency"],
            "collection_method": "send_invoice",
            "days_until_due": body["days_until_due"],
            "auto_advance": False,
            "pending_invoice_items_behavior": "exclude",
            "description": body["description"],
            "metadata": {SUBJECT: subject},
        }
        return self._client.v1.invoices.create(params, options)

    def _item(self, subject: str, body: Body, options: Any) -> Any:
        params: Any = {
            "customer": body["customer"],
            "invoice": body["invoice"],
            "currency": body["currency"],
            "amount": body["amount"],
            "description": body["description"],
            "metadata": {SUBJECT: subject},
        }
        return self._client.v1.invoice_items.create(params, options)

    def _finalise(self, _subject: str, body: Body, options: Any) -> Any:
        params: Any = {"auto_advance": True}
        return self._client.v1.invoices.finalize_invoice(body["invoice"], params, options)

    def _void(self, _subject: str, body: Body, options: Any) -> Any:
        return self._client.v1.invoices.void_invoice(body["invoice"], {}, options)

    def _give_up(self, _subject: str, body: Body, options: Any) -> Any:
        return self._client.v1.invoices.mark_uncollectible(body["invoice"], {}, options)

    def _credit_note(self, subject: str, body: Body, options: Any) -> Any:
        params: Any = {
            "invoice": body["invoice"],
            "amount": body["amount"],
            "memo": body["memo"],
            "metadata": {SUBJECT: subject},
        }
        if body["outside"]:  # of what was paid already: it went into credit that we keep
            params["out_of_band_amount"] = body["outside"]
        return self._client.v1.credit_notes.create(params, options)

    def _paid_outside(self, _subject: str, body: Body, options: Any) -> Any:
        params: Any = {"paid_out_of_band": True}
        return self._client.v1.invoices.pay(body["invoice"], params, options)

    def _recharge(self, subject: str, body: Body, options: Any) -> Any:
        params: Any = {
            "customer": body["customer"],
            "payment_method": self._card(body["customer"]),
            "amount": body["amount"],
            "currency": body["currency"],
            "description": body["description"],
            "confirm": True,
            "off_session": True,
            "metadata": {SUBJECT: subject},
        }
        return self._client.v1.payment_intents.create(params, options)

    def _card(self, customer_id: str) -> str:
        """The card that Checkout kept last. Stripe takes none by itself but a legacy source."""
        kept = self._client.v1.customers.payment_methods.list(
            customer_id, {"type": "card", "limit": 1}
        )
        for card in kept.data:
            return str(card.id)
        raise Refused("no card is kept: buy credit on a page first")

    def _refund(self, subject: str, body: Body, options: Any) -> Any:
        params: Any = {
            "payment_intent": body["intent"],
            "amount": body["amount"],
            "metadata": {SUBJECT: subject},
        }
        return self._client.v1.refunds.create(params, options)

    def _meter(self, subject: str, body: Body, options: Any) -> str:
        params: Any = {
            "event_name": body["event"],
            "payload": {"stripe_customer_id": body["customer"], "value": str(body["value"])},
            "identifier": subject,
            "timestamp": body["at_s"],
        }
        return str(self._client.v1.billing.meter_events.create(params, options).identifier)

    def _metered(self, body: Body) -> float:
        """What the meter has of the customer for this hour."""
        hour: Any = {
            "customer": body["customer"],
            "start_time": body["at_s"],
            "end_time": body["at_s"] + 3600,
        }
        for meter in self._client.v1.billing.meters.list({"limit": PAGE}).auto_paging_iter():
            if meter.event_name == body["event"]:
                found = self._client.v1.billing.meters.event_summaries.list(meter.id, hour)
                return sum(each.aggregated_value for each in found.auto_paging_iter())
        return 0.0

    def _find(self, action: str, subject: str, body: Body) -> str | None:
        if action in _DONE_AT:
            found = self._client.v1.invoices.retrieve(body["invoice"])
            return found.id if found.status in _DONE_AT[action] else None
        if action == "meter":  # an event has no address of its own: what it added up to has
            return subject if self._metered(body) >= body["told"] + body["value"] else None
        listed: Any
        if action == "customer":
            listed = self._client.v1.customers.list({"email": body["email"]})
        elif action == "item":
            listed = self._client.v1.invoice_items.list({"invoice": body["invoice"]})
        elif action == "credit_note":
            listed = self._client.v1.credit_notes.list({"invoice": body["invoice"]})
        elif action == "invoice":
            listed = self._client.v1.invoices.list({"customer": body["customer"]})
        elif action == "recharge":
            listed = self._client.v1.payment_intents.list({"customer": body["customer"]})
        else:
            listed = self._client.v1.refunds.list({"payment_intent": body["intent"]})
        for each in listed.auto_paging_iter():
            if subject_of(each) == subject:
                # A person has asked to try the card again: what was declined is not what is meant.
                if body.get("again") and payment_state(each).status == "failed":
                    continue
                return str(each.id)
        return None


def _of_payment(intent_id: str | None) -> Any:
    return {"limit": PAGE} | ({} if intent_id is None else {"payment_intent": intent_id})


@contextmanager
def _translated() -> Iterator[None]:
    """The SDK's errors, by what they say of the effect."""
    try:
        yield
    except stripe_sdk.APIConnectionError as error:
        raise Unanswered(str(error)) from error
    except stripe_sdk.RateLimitError as error:
        raise Busy(str(error)) from error
    except (stripe_sdk.AuthenticationError, stripe_sdk.PermissionError) as error:
        raise Busy(f"our key: {error}") from error  # ours to mend, then it goes on
    except stripe_sdk.StripeError as error:
        status = error.http_status or 0
        if status == 409:  # the first request with this key is still running
            raise Busy(str(error)) from error
        if status >= 500:
            raise Faulted(str(error)) from error
        raise Refused(str(error)) from error
