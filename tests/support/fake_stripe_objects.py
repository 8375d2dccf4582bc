"""What else a Stripe of our own knows beside invoices, and what the world does to all of it.

`act` is what customers and banks do.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import Any

from fake_stripe_invoices import DAY_S, Invoices, Rejection, invalid

SECRET = "whsec_test"


class Objects(Invoices):
    """All that Stripe knows, and what may be done to it."""

    # What the API does.

    def customers(self, params: dict[str, Any]) -> dict[str, Any]:
        return self.make(
            "cus",
            "customer",
            name=params.get("name"),
            email=params.get("email"),
            metadata=params.get("metadata", {}),
        )

    def sessions(self, params: dict[str, Any]) -> dict[str, Any]:
        self.get(params["customer"], "customer")
        (item,) = params["line_items"].values()
        made = self.make(
            "cs",
            "checkout.session",
            customer=params["customer"],
            status="open",
            payment_status="unpaid",
            amount_total=int(item["price_data"]["unit_amount"]) * int(item["quantity"]),
            currency=item["price_data"]["currency"],
            payment_intent=None,
            intent_metadata=params.get("payment_intent_data", {}).get("metadata", {}),
            metadata=params.get("metadata", {}),
        )
        made["url"] = f"https://checkout.example/{made['id']}"
        return made

    def keep_card(self, customer: str) -> dict[str, Any]:
        return self.make("pm", "payment_method", customer=customer, type="card")

    def intents(self, params: dict[str, Any]) -> dict[str, Any]:
        self.get(params["customer"], "customer")
        if "payment_method" not in params:
            raise invalid("You cannot confirm this PaymentIntent: it's missing a payment method.")
        card = self.get(params["payment_method"], "payment_method")
        if card["customer"] != params["customer"]:
            raise invalid("The payment method does not belong to the customer.")
        made = self.pay_with(
            params["customer"],
            int(params["amount"]),
            params["currency"],
            params.get("metadata", {}),
        )
        if self.declines:
            made |= {"status": "requires_payment_method", "amount_received": 0}
            self.emit("payment_intent.payment_failed", made)
            raise Rejection(402, "card_error", "Your card was declined.", code="card_declined")
        self.emit("payment_intent.succeeded", made)
        return made

    def refunds(self, params: dict[str, Any]) -> dict[str, Any]:
        intent = self.get(params["payment_intent"], "payment_intent")
        amount = int(params["amount"])
        before = sum(
            each["amount"]
            for each in self.all("refund", payment_intent=intent["id"])
            if each["status"] not in ("failed", "canceled")
        )
        if before + amount > intent["amount_received"]:
            raise invalid("Refund amount is greater than the unrefunded amount")
        made = self.make(
            "re",
            "refund",
            payment_intent=intent["id"],
            amount=amount,
            status="succeeded",
            metadata=params.get("metadata", {}),
        )
        self.emit("refund.created", made)
        return made

    def meter_events(self, params: dict[str, Any]) -> dict[str, Any]:
        at, now = int(params["timestamp"]), self.now()
        if not now - 35 * DAY_S <= at <= now + 300:
            raise invalid("timestamp must be within the past 35 days and up to 5 minutes ahead")
        if not self.all("billing.meter", event_name=params["event_name"]):
            raise invalid(f"No active meter found for event name {params['event_name']}")
        self.get(params["payload"]["stripe_customer_id"], "customer")
        known = self.all("billing.meter_event", identifier=params["identifier"])
        if any(now - each["created"] < DAY_S for each in known):
            raise invalid("An event already exists with this identifier")
        return self.make(
            "mtrev",
            "billing.meter_event",
            identifier=params["identifier"],
            event_name=params["event_name"],
            payload=params["payload"],
            timestamp=at,
        )

    def event_summaries(self, meter: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        first, last = int(params["start_time"]), int(params["end_time"])
        if first % 60 or last % 60:
            raise invalid("start_time and end_time must be aligned with minutes")
        value = sum(
            float(each["payload"]["value"])
            for each in self.all("billing.meter_event", event_name=meter["event_name"])
            if each["payload"]["stripe_customer_id"] == params["customer"]
            and first <= each["timestamp"] < last
        )
        summary = {
            "id": "mtrusg_1",
            "object": "billing.meter_event_summary",
            "aggregated_value": value,
        }
        return {"object": "list", "data": [summary], "has_more": False, "url": "/v1/list"}

    def pay_with(
        self, customer: str, amount: int, currency: str, metadata: dict[str, str]
    ) -> dict[str, Any]:
        return self.make(
            "pi",
            "payment_intent",
            customer=customer,
            amount=amount,
            amount_received=amount,
            currency=currency,
            status="succeeded",
            metadata=metadata,
        )

    # What customers and banks do.

    def act(self, action: str, params: dict[str, Any]) -> Any:
        if action == "clock":
            if "at_s" in params:
                self.shift_s = params["at_s"] - time.time()
            self.shift_s += params.get("advance_s", 0)
        elif action == "decline":
            self.declines = bool(params["decline"])
        elif action == "meter":
            return self.make("mtr", "billing.meter", event_name=params["event_name"])["id"]
        elif action == "pay":
            invoice = self.get(params["invoice"], "invoice")
            if invoice["status"] not in ("open", "uncollectible"):
                raise invalid("This invoice can no longer be paid")
            paid = self.pay_with(
                invoice["customer"], invoice["amount_due"], invoice["currency"], {}
            )
            invoice |= {"status": "paid", "amount_paid": invoice["amount_due"], "attempted": True}
            invoice["amount_remaining"] = 0
            self.make(
                "inpay",
                "invoice_payment",
                invoice=invoice["id"],
                intent=paid["id"],
                status="paid",
                amount_paid=invoice["amount_due"],
                payment={"type": "payment_intent", "payment_intent": paid["id"]},
            )
            self.emit("invoice.paid", invoice)
            return paid["id"]
        elif action == "fail_payment":
            invoice = self.get(params["invoice"], "invoice")
            invoice["attempted"] = True
            self.emit("invoice.payment_failed", invoice)
        elif action == "card":
            self.keep_card(params["customer"])
        elif action == "complete":
            session = self.get(params["session"], "checkout.session")
            self.keep_card(session["customer"])
            paid = self.pay_with(
                session["customer"],
                session["amount_total"],
                session["currency"],
                session["intent_metadata"],
            )
            session |= {"status": "complete", "payment_status": "paid"}
            session["payment_intent"] = paid["id"]
            self.emit("payment_intent.succeeded", paid)
            self.emit("checkout.session.completed", session)
            return paid["id"]
        elif action == "expire":
            session = self.get(params["session"], "checkout.session")
            session["status"] = "expired"
            self.emit("checkout.session.expired", session)
        elif action == "dispute":
            intent = self.get(params["intent"], "payment_intent")
            made = self.make(
                "du",
                "dispute",
                payment_intent=intent["id"],
                amount=intent["amount_received"],
                status="needs_response",
            )
            self.emit("charge.dispute.created", made)
            return made["id"]
        elif action == "end_dispute":
            found = self.get(params["dispute"], "dispute")
            found["status"] = params["status"]
            self.emit("charge.dispute.closed", found)
        elif action == "refund":
            return self.refunds(params)["id"]
        elif action == "change":  # by somebody at Stripe's own pages
            self.objects[params["id"]] |= params["fields"]
        elif action == "events":
            return [self.signed(event) for event in self.events]
        return None

    def signed(self, event: dict[str, Any]) -> dict[str, str]:
        payload = json.dumps(event)
        at = int(self.now())
        mac = hmac.new(SECRET.encode(), f"{at}.{payload}".encode(), hashlib.sha256).hexdigest()
        return {"payload": payload, "signature": f"t={at},v1={mac}"}
