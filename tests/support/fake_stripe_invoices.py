"""Invoices and credit notes of a Stripe of our own, and the rules of their states.

Items only into drafts, finalised once, given up while open, voided or paid while open or given up.
Credit notes: no more than the invoice, first of what is still to pay; of the rest it has to be said
where it went.
"""

from __future__ import annotations

import itertools
import json
import time
from typing import Any

DAY_S = 86_400
ITEMS_MAX = 250


class Rejection(Exception):
    """An answer of status 4xx, which keeps nothing under the key."""

    def __init__(self, status: int, kind: str, message: str, **more: Any) -> None:
        self.status = status
        self.body = {"error": {"type": kind, "message": message, **more}}


def invalid(message: str) -> Rejection:
    return Rejection(400, "invalid_request_error", message)


class Store:
    """What Stripe knows, and the events that it sent."""

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

    def all(self, kind: str, **wanted: Any) -> list[dict[str, Any]]:
        """Every object of a kind that has these fields, newest first."""
        return [
            each
            for each in reversed(self.objects.values())
            if each["object"] == kind
            and all(each.get(name) == value for name, value in wanted.items())
        ]

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


class Invoices(Store):
    """Invoices, their items and payments, and credit notes."""

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
        if len(self.all("invoiceitem", invoice=invoice["id"])) == ITEMS_MAX:
            raise invalid(f"An invoice has at most {ITEMS_MAX} items")
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
        paid = self.all("invoice_payment", invoice=found["id"])
        payments = {
            "object": "list",
            "data": paid,
            "has_more": False,
            "url": "/v1/invoice_payments",
        }
        return found | {"payments": payments}

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
