"""What a Stripe of our own knows: its objects, their rules, and what the world does to them.

Invoices: items only into drafts, finalised once, given up while open, voided or paid while open or
given up. Credit notes: no more than the invoice, first of what is still to pay; of the rest it has
to be said where it went. `act` is what customers and banks do.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import time
from typing import Any

SECRET = "whsec_test"
DAY_S = 86_400


class Rejection(Exception):
    """An answer of status 4xx, which keeps nothing under the key."""

    def __init__(self, status: int, kind: str, message: str, **more: Any) -> None:
        self.status = status
        self.body = {"error": {"type": kind, "message": message, **more}}


def invalid(message: str) -> Rejection:
    return Rejection(400, "invalid_request_error", message)


class Objects:
    """All that Stripe knows, what may be done to it, and the events that it sent."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.shift_s = 0.0
        self.declines = False
        self.numbers = itertools.count(1)

    def now(self) -> float:
        return time.time() + self.shift_s

    def make(self, prefix: str, kind: str, **fields: Any) -> dict[str, Any]:
        made = {
            "id": f"{prefix}_{next(self.numbers):08d}",
            "object": kind,
            "created": int(self.now()),
            "livemode": False,
            **fields,
        }
        self.objects[made["id"]] = made
        return made

    def get(self, object_id: str, kind: str) -> dict[str, Any]:
        found = self.objects.get(object_id)
        if found is None or found["object"] != kind:
            raise Rejection(404, "invalid_request_error", f"No such {kind}: '{object_id}'")
        return found

    def list(self, kind: str, **wanted: Any) -> dict[str, Any]:
        data = [
            each
            for each in self.objects.values()
            if each["object"] == kind
            and all(each.get(name) == value for name, value in wanted.items() if value)
        ]
        return {"object": "list", "data": data[::-1], "has_more": False, "url": "/v1/list"}

    def emit(self, kind: str, about: dict[str, Any]) -> None:
        number = next(self.numbers)
        self.events.append(
            {
                "id": f"evt_{number:08d}",
                "object": "event",
                "type": kind,
                "created": int(self.now()),
                "livemode": False,
                "data": {"object": json.loads(json.dumps(about))},
            }
        )

    # What the API does.

    def customers(self, params: dict[str, Any]) -> dict[str, Any]:
        return self.make(
            "cus",
            "customer",
            name=params.get("name"),
            email=params.get("email"),
            metadata=params.get("metadata", {}),
        )

    def invoices(self, params: dict[str, Any]) -> dict[str, Any]:
        customer = self.get(params["customer"], "customer")
        if params.get("auto_advance") != "false":
            raise invalid("this test wants auto_advance=false")
        if params.get("pending_invoice_items_behavior") != "exclude":
            raise invalid("this test wants pending items excluded")
        if params["collection_method"] == "send_invoice" and "days_until_due" not in params:
            raise invalid("days_until_due is required")
        return self.make(
            "in",
            "invoice",
            customer=customer["id"],
            currency=params["currency"],
            status="draft",
            total=0,
            amount_due=0,
            amount_paid=0,
            amount_remaining=0,
            pre_payment_credit_notes_amount=0,
            post_payment_credit_notes_amount=0,
            attempted=False,
            auto_advance=False,
            description=params.get("description"),
            metadata=params.get("metadata", {}),
        )

    def items(self, params: dict[str, Any]) -> dict[str, Any]:
        customer = self.get(params["customer"], "customer")
        invoice = self.get(params["invoice"], "invoice")
        if invoice["status"] != "draft":
            raise invalid("You can only add items to a draft invoice")
        if invoice["customer"] != customer["id"] or invoice["currency"] != params["currency"]:
            raise invalid("The item does not fit the invoice")
        amount = int(params["amount"])
        for name in ("total", "amount_due", "amount_remaining"):
            invoice[name] += amount
        return self.make(
            "ii",
            "invoiceitem",
            customer=customer["id"],
            invoice=invoice["id"],
            amount=amount,
            currency=params["currency"],
            description=params.get("description"),
            metadata=params.get("metadata", {}),
        )

    def expanded(self, found: dict[str, Any], with_payments: bool) -> dict[str, Any]:
        """An object as it is answered: what it has of others only where that was asked for."""
        if not with_payments:
            return found
        return found | {"payments": self.list("invoice_payment", invoice=found["id"])}

    def finalize(self, invoice: dict[str, Any], _params: dict[str, Any]) -> dict[str, Any]:
        if invoice["status"] != "draft":
            raise invalid("This invoice is already finalized")
        invoice["status"] = "open"
        self.emit("invoice.finalized", invoice)
        return invoice

    def pay_outside(self, invoice: dict[str, Any], params: dict[str, Any]) -> dict[str, Any]:
        if params.get("paid_out_of_band") != "true":
            raise invalid("this test only pays out of band")
        if invoice["status"] not in ("open", "uncollectible"):
            raise invalid("Invoice is already paid, or not open")
        amount = invoice["amount_remaining"]
        invoice |= {"status": "paid", "amount_remaining": 0}
        invoice["amount_paid"] += amount
        self.make(
            "inpay",
            "invoice_payment",
            invoice=invoice["id"],
            status="paid",
            amount_paid=amount,
            payment={"type": "payment_record"},
        )
        self.emit("invoice.paid", invoice)
        return invoice

    def credit_notes(self, params: dict[str, Any]) -> dict[str, Any]:
        invoice = self.get(params["invoice"], "invoice")
        amount, outside = int(params["amount"]), int(params.get("out_of_band_amount", 0))
        if invoice["status"] not in ("open", "paid"):
            raise invalid("You can only create credit notes for open or paid invoices")
        before = sum(invoice[f"{when}_payment_credit_notes_amount"] for when in ("pre", "post"))
        if not 0 < amount <= invoice["total"] - before:
            raise invalid("The credit note's amount is more than what is left of the invoice")
        off = min(amount, invoice["amount_remaining"])
        if outside != amount - off:
            raise invalid("refund, credit and out_of_band must add up to what was paid already")
        invoice["pre_payment_credit_notes_amount"] += off
        invoice["post_payment_credit_notes_amount"] += amount - off
        invoice["amount_due"] -= off
        invoice["amount_remaining"] -= off
        if invoice["status"] == "open" and invoice["amount_remaining"] == 0:
            invoice["status"] = "paid"
            self.emit("invoice.paid", invoice)
        made = self.make(
            "cn",
            "credit_note",
            invoice=invoice["id"],
            customer=invoice["customer"],
            amount=amount,
            out_of_band_amount=outside or None,
            memo=params.get("memo"),
            metadata=params.get("metadata", {}),
        )
        self.emit("credit_note.created", made)
        return made

    def void(self, invoice: dict[str, Any], _params: dict[str, Any]) -> dict[str, Any]:
        if invoice["status"] not in ("open", "uncollectible"):
            raise invalid("You can only void an open invoice")
        invoice["status"] = "void"
        self.emit("invoice.voided", invoice)
        return invoice

    def give_up(self, invoice: dict[str, Any], _params: dict[str, Any]) -> dict[str, Any]:
        if invoice["status"] != "open":
            raise invalid("You can only mark an open invoice as uncollectible")
        invoice["status"] = "uncollectible"
        self.emit("invoice.marked_uncollectible", invoice)
        return invoice

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
            each["amount"] for each in self.list("refund", payment_intent=intent["id"])["data"]
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
        if not self.list("billing.meter", event_name=params["event_name"])["data"]:
            raise invalid(f"No active meter found for event name {params['event_name']}")
        self.get(params["payload"]["stripe_customer_id"], "customer")
        known = self.list("billing.meter_event", identifier=params["identifier"])["data"]
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
            for each in self.list("billing.meter_event", event_name=meter["event_name"])["data"]
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
