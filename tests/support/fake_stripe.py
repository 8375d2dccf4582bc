"""A Stripe of our own, as a process of its own, that keeps to Stripe's rules.

    python fake_stripe.py PORT_FILE

Idempotency keys: the answer of the first request is kept for 24 hours of its clock, faults of ours
included, and given again; the same key with other parameters is an error; refused and rate-limited
requests keep nothing. Invoices: items only into drafts, finalised once, voided only while open.
Everything under `/_test` steers it: the clock, faults to come, and what customers and banks do.
"""

from __future__ import annotations

import hashlib
import hmac
import itertools
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

SECRET = "whsec_test"
DAY_S = 86_400
CURRENCIES = {"usd", "eur", "jpy"}


class Rejection(Exception):
    """An answer of status 4xx, which keeps nothing under the key."""

    def __init__(self, status: int, kind: str, message: str, **more: Any) -> None:
        self.status = status
        self.body = {"error": {"type": kind, "message": message, **more}}


class Drop(Exception):
    """The connection breaks before any answer."""


def invalid(message: str) -> Rejection:
    return Rejection(400, "invalid_request_error", message)


class Stripe:
    """All objects, the answers kept under keys, and the events sent."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.objects: dict[str, dict[str, Any]] = {}
        self.keys: dict[str, tuple[str, float, int, Any]] = {}
        self.events: list[dict[str, Any]] = []
        self.faults: list[str] = []
        self.posts = 0
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
            amount_due=0,
            amount_paid=0,
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
        invoice["amount_due"] += amount
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

    def finalize(self, invoice: dict[str, Any]) -> dict[str, Any]:
        if invoice["status"] != "draft":
            raise invalid("This invoice is already finalized")
        invoice["status"] = "open"
        self.emit("invoice.finalized", invoice)
        return invoice

    def void(self, invoice: dict[str, Any]) -> dict[str, Any]:
        if invoice["status"] not in ("open", "uncollectible"):
            raise invalid("You can only void an open invoice")
        invoice["status"] = "void"
        self.emit("invoice.voided", invoice)
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

    def intents(self, params: dict[str, Any]) -> dict[str, Any]:
        self.get(params["customer"], "customer")
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
        if action == "reset":
            lock = self.lock
            self.__init__()  # type: ignore[misc]
            self.lock = lock
        elif action == "clock":
            if "at_s" in params:
                self.shift_s = params["at_s"] - time.time()
            self.shift_s += params.get("advance_s", 0)
        elif action == "faults":
            self.faults = list(params["faults"])
        elif action == "decline":
            self.declines = bool(params["decline"])
        elif action == "pay":
            invoice = self.get(params["invoice"], "invoice")
            paid = self.pay_with(
                invoice["customer"], invoice["amount_due"], invoice["currency"], {}
            )
            invoice |= {"status": "paid", "amount_paid": invoice["amount_due"], "attempted": True}
            self.make(
                "inpay",
                "invoice_payment",
                invoice=invoice["id"],
                intent=paid["id"],
                status="paid",
            )
            self.emit("invoice.paid", invoice)
            return paid["id"]
        elif action == "fail_payment":
            invoice = self.get(params["invoice"], "invoice")
            invoice["attempted"] = True
            self.emit("invoice.payment_failed", invoice)
        elif action == "complete":
            session = self.get(params["session"], "checkout.session")
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
        elif action == "state":
            counts: dict[str, int] = {}
            for each in self.objects.values():
                counts[each["object"]] = counts.get(each["object"], 0) + 1
            return {"counts": counts, "objects": self.objects, "posts": self.posts}
        elif action == "events":
            return [self.signed(event) for event in self.events]
        return None

    def signed(self, event: dict[str, Any]) -> dict[str, str]:
        payload = json.dumps(event)
        at = int(self.now())
        mac = hmac.new(SECRET.encode(), f"{at}.{payload}".encode(), hashlib.sha256).hexdigest()
        return {"payload": payload, "signature": f"t={at},v1={mac}"}

    def post(self, path: str, params: dict[str, Any]) -> dict[str, Any]:
        whole = {
            "/v1/customers": self.customers,
            "/v1/invoices": self.invoices,
            "/v1/invoiceitems": self.items,
            "/v1/checkout/sessions": self.sessions,
            "/v1/payment_intents": self.intents,
            "/v1/refunds": self.refunds,
        }
        if path in whole:
            try:
                return whole[path](params)
            except (KeyError, ValueError) as error:
                raise invalid(f"missing or bad: {error}") from None
        parts = path.split("/")
        if path.startswith("/v1/invoices/") and parts[-1] in ("finalize", "void"):
            invoice = self.get(parts[3], "invoice")
            return self.finalize(invoice) if parts[-1] == "finalize" else self.void(invoice)
        raise Rejection(404, "invalid_request_error", f"Unrecognized request URL {path}")

    def read(self, path: str, params: dict[str, Any]) -> dict[str, Any]:
        kinds = {
            "customers": "customer",
            "invoices": "invoice",
            "invoiceitems": "invoiceitem",
            "payment_intents": "payment_intent",
            "refunds": "refund",
            "disputes": "dispute",
        }
        parts = path.split("/")[2:]
        if parts[0] == "checkout":
            return self.get(parts[2], "checkout.session")
        if parts[0] == "invoice_payments":
            return self.list("invoice_payment", intent=params["payment"]["payment_intent"])
        kind = kinds[parts[0]]
        if len(parts) == 2:
            return self.get(parts[1], kind)
        wanted = {name: params.get(name) for name in ("customer", "invoice", "payment_intent")}
        found = self.list(kind, **wanted)
        since = int(params.get("created", {}).get("gte", 0))
        found["data"] = [each for each in found["data"] if each["created"] >= since]
        return found

    def keyed(self, path: str, params: dict[str, Any], key: str | None) -> tuple[int, Any]:
        """Answer a POST once per key, as Stripe documents it."""
        self.posts += 1
        fault = self.faults.pop(0) if self.faults else ""
        said = f"{path} {json.dumps(params, sort_keys=True)}"
        if fault == "429":
            raise Rejection(429, "rate_limit_error", "Too many requests")
        if key in self.keys:
            before, at, status, body = self.keys[key]
            if self.now() - at < DAY_S:
                if before != said:
                    raise Rejection(
                        400,
                        "idempotency_error",
                        "Keys for idempotent requests can only be used with the same parameters "
                        "they were first used with.",
                    )
                return status, body
        if fault == "500":
            answer = 500, {"error": {"type": "api_error", "message": "Something went wrong"}}
        elif fault == "500 after":
            self.post(path, params)
            answer = 500, {"error": {"type": "api_error", "message": "Something went wrong"}}
        elif fault == "drop":
            raise Drop
        else:
            answer = 200, json.loads(json.dumps(self.post(path, params)))
        if key is not None:
            self.keys[key] = (said, self.now(), *answer)
        if fault == "drop after":
            raise Drop
        return answer


def nested(query: str) -> dict[str, Any]:
    """`a[b]=c` as a mapping of mappings; lists are mappings by number."""
    found: dict[str, Any] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        steps = name.replace("]", "").split("[")
        place = found
        for step in steps[:-1]:
            place = place.setdefault(step, {})
        place[steps[-1]] = value
    return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stripe: Stripe

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.answer(lambda: (200, self.stripe.read(parts.path, nested(parts.query))))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0))).decode()
        path = urlsplit(self.path).path
        if path.startswith("/_test/"):
            params = json.loads(body or "{}")
            action = path.removeprefix("/_test/")
            self.answer(lambda: (200, {"result": self.stripe.act(action, params)}))
            return
        key = self.headers.get("idempotency-key")
        self.answer(lambda: self.stripe.keyed(path, nested(body), key))

    def answer(self, work: Any) -> None:
        with self.stripe.lock:
            try:
                status, body = work()
            except Rejection as rejection:
                status, body = rejection.status, rejection.body
            except Drop:
                self.close_connection = True
                self.connection.close()
                return
        written = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(written)))
        self.end_headers()
        self.wfile.write(written)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def main(port_file: str) -> None:
    Handler.stripe = Stripe()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    with open(port_file, "w", encoding="utf-8") as target:
        target.write(f"{server.server_port}\n")
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
