"""A Stripe of our own, as a process of its own, that keeps to Stripe's rules.

    python fake_stripe.py PORT_FILE

Idempotency keys: the answer of the first request is kept for 24 hours of its clock, faults of ours
included, and given again; the same key with other parameters is an error; refused and rate-limited
requests keep nothing. Lists are newest first and in pages, and are filtered by what Stripe filters
them by: it knows no list of one customer's refunds or disputes. Everything under `/_test` steers
it: the clock, faults to come, and what customers and banks do.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from fake_stripe_invoices import DAY_S, Rejection, invalid
from fake_stripe_objects import Objects

# What is listed under which path, and by what it is filtered.
LISTED = {
    "customers": ("customer", ("email", "created")),
    "invoices": ("invoice", ("customer", "status", "created")),
    "invoiceitems": ("invoiceitem", ("customer", "invoice", "created")),
    "payment_intents": ("payment_intent", ("customer", "created")),
    "refunds": ("refund", ("charge", "payment_intent", "created")),
    "disputes": ("dispute", ("charge", "payment_intent", "created")),
    "credit_notes": ("credit_note", ("customer", "invoice", "created")),
}
# A value in metadata, both in quotes of which those inside are escaped.
SEARCHED = re.compile(r'metadata\["((?:[^"\\]|\\.)+)"\]:"((?:[^"\\]|\\.)*)"')


class Drop(Exception):
    """The connection breaks before any answer."""


class Stripe(Objects):
    """The objects behind an API: the answers kept under keys, and the faults to come."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.keys: dict[str, tuple[str, float, int, Any]] = {}
        self.faults: list[str] = []
        self.posts = 0

    def steer(self, action: str, params: dict[str, Any]) -> Any:
        """What only a test does; everything else is the world's doing."""
        if action == "reset":
            lock = self.lock
            self.__init__()  # type: ignore[misc]
            self.lock = lock
        elif action == "faults":
            self.faults = list(params["faults"])
        elif action == "state":
            counts: dict[str, int] = {}
            for each in self.objects.values():
                counts[each["object"]] = counts.get(each["object"], 0) + 1
            return {"counts": counts, "objects": self.objects, "posts": self.posts}
        else:
            return self.act(action, params)
        return None

    def post(self, path: str, params: dict[str, Any]) -> dict[str, Any]:
        whole = {
            "/v1/customers": self.customers,
            "/v1/invoices": self.invoices,
            "/v1/invoiceitems": self.items,
            "/v1/checkout/sessions": self.sessions,
            "/v1/payment_intents": self.intents,
            "/v1/refunds": self.refunds,
            "/v1/credit_notes": self.credit_notes,
            "/v1/billing/meter_events": self.meter_events,
        }
        if path in whole:
            try:
                return whole[path](params)
            except (KeyError, ValueError) as error:
                raise invalid(f"missing or bad: {error}") from None
        parts = path.split("/")
        done = {
            "finalize": self.finalize,
            "void": self.void,
            "mark_uncollectible": self.give_up,
            "pay": self.pay_outside,
        }
        if path.startswith("/v1/invoices/") and parts[-1] in done:
            return done[parts[-1]](self.get(parts[3], "invoice"), params)
        raise Rejection(404, "invalid_request_error", f"Unrecognized request URL {path}")

    def read(self, path: str, params: dict[str, Any]) -> dict[str, Any]:
        parts = path.split("/")[2:]
        if parts[:2] == ["billing", "meters"]:
            if len(parts) == 2:
                return self.page(path, self.all("billing.meter"), params, ("status",))
            return self.event_summaries(self.get(parts[2], "billing.meter"), params)
        if parts[0] == "checkout":
            return self.get(parts[2], "checkout.session")
        if parts[0] == "invoice_payments":
            wanted = params.pop("payment")["payment_intent"]
            found = self.all("invoice_payment", intent=wanted)
            return self.page(path, found, params, ("invoice", "status"))
        if parts[-1] == "payment_methods":
            found = self.all("payment_method", customer=parts[1])
            return self.page(path, found, params, ("type",))
        if parts == ["customers", "search"]:
            return self.search(path, self.all("customer"), params)
        kind, filters = LISTED[parts[0]]
        if len(parts) == 2:
            return self.expanded(self.get(parts[1], kind), expands(params, "payments"))
        found = self.page(path, self.all(kind), params, filters)
        found["data"] = [
            self.expanded(each, expands(params, "data.payments")) for each in found["data"]
        ]
        return found

    def page(
        self, path: str, found: list[dict[str, Any]], params: dict[str, Any], filters: Any
    ) -> dict[str, Any]:
        """One page of what the filters leave."""
        for name in params:
            if name not in {*filters, "limit", "starting_after", "expand"}:
                raise invalid(f"Received unknown parameter: {name}")
        limit = int(params.get("limit", 10))
        if not 1 <= limit <= 100:
            raise invalid("This value must be between 1 and 100")
        for name in set(filters) & params.keys():
            wanted = params[name]
            if name == "created":
                found = [each for each in found if each["created"] >= int(wanted["gte"])]
            else:
                found = [each for each in found if each.get(name) == wanted]
        if "starting_after" in params:
            ids = [each["id"] for each in found]
            if params["starting_after"] not in ids:
                raise invalid(f"No such object: '{params['starting_after']}'")
            found = found[ids.index(params["starting_after"]) + 1 :]
        return {
            "object": "list",
            "data": found[:limit],
            "has_more": len(found) > limit,
            "url": path,
        }

    def search(
        self, path: str, found: list[dict[str, Any]], params: dict[str, Any]
    ) -> dict[str, Any]:
        """One page of what bears a value in its metadata: all that is searched for here."""
        wanted = SEARCHED.fullmatch(params["query"])
        if wanted is None:
            raise invalid(f"We were unable to parse your search query: {params['query']}")
        name, value = (re.sub(r"\\(.)", r"\1", each) for each in wanted.groups())
        found = [each for each in found if each["metadata"].get(name) == value]
        start, limit = int(params.get("page", 0)), int(params.get("limit", 10))
        has_more = len(found) > start + limit
        return {
            "object": "search_result",
            "data": found[start : start + limit],
            "has_more": has_more,
            "next_page": str(start + limit) if has_more else None,
            "url": path,
        }

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


def expands(params: dict[str, Any], name: str) -> bool:
    return name in params.get("expand", {}).values()


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
    wbufsize = -1  # an answer in one piece: in two, the second waits 40 ms to be asked for
    stripe: Stripe

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.answer(lambda: (200, self.stripe.read(parts.path, nested(parts.query))))

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length).decode()
        if len(body.encode()) < length:
            self.close_connection = True  # whoever sent it died: half a request is none
            return
        path = urlsplit(self.path).path
        if path.startswith("/_test/"):
            params = json.loads(body or "{}")
            action = path.removeprefix("/_test/")
            self.answer(lambda: (200, {"result": self.stripe.steer(action, params)}))
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
