"""Webhooks out: signed, retried, replayed, and never a way into our own network."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from api_app import make_client
from api_cases import HeldClock, House, bearer, make_house
from sqlalchemy import Connection, Engine
from standardwebhooks import Webhook, WebhookVerificationError

from api.errors import Conflict, InvalidParameter
from api.webhooks import deliveries, endpoints, sending
from api.webhooks.addresses import ForbiddenAddress, check_url, resolve
from api.webhooks.deliveries import SCHEDULE_S, Due
from api.webhooks.routes import webhooks_router
from api.webhooks.sending import Sender
from billing.notices import announce
from metering.database import snapshot, transaction


@dataclass
class Receiver:
    """A server that answers as told, and keeps what it was sent."""

    port: int = 0
    status: int = 200
    drips: str | None = None  # what it never comes to the end of
    calls: list[tuple[dict[str, str], bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kept.calls.append(({k.lower(): v for k, v in self.headers.items()}, body))
            self.send_response(kept.status)
            self.send_header("location", "/elsewhere")
            if kept.drips:
                self.drip()
            self.send_header("content-length", "0")
            self.end_headers()

        def drip(self) -> None:
            """Begin an answer that has no end."""
            if kept.drips == "body":
                self.end_headers()
            with suppress(OSError):
                while kept.drips:
                    self.flush_headers()
                    self.wfile.write(b"x")
                    time.sleep(0.01)
            self.close_connection = True

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.port = server.server_address[1]
    # how often it looks whether it is to end; by default every half a second
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield kept
    kept.drips = None
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def hung() -> Iterator[str]:
    """The address of a process that takes calls and never answers one, until it is killed."""
    script = (
        "import socket, time\n"
        "server = socket.create_server(('127.0.0.1', 0), backlog=128)\n"
        "print(server.getsockname()[1], flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-S", "-c", script], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/hook"
        process.kill()


@pytest.fixture
def house(database: Engine, held_clock: HeldClock) -> House:
    return make_house(database)


@pytest.fixture
def sender(database: Engine) -> Iterator[Sender]:
    opened = Sender(database, allow_private=True)
    yield opened
    opened.close()


def tell(database: Engine, house: House, cause: str = "1", kind: str = "balance.low") -> None:
    with transaction(database) as connection:
        announce(connection, house.tenant_id, kind, cause, {"available": "1.5"})


def listen(database: Engine, house: House, url: str, *types: str) -> endpoints.Endpoint:
    with transaction(database) as connection:
        return endpoints.create(connection, house.tenant_id, url, types, allow_private=True)


def listed(database: Engine, house: House) -> list[deliveries.Delivery]:
    with snapshot(database) as connection:
        return deliveries.listing(connection, house.tenant_id, limit=100)


def test_a_notice_is_told_once_to_each_endpoint_that_wants_it(
    database: Engine, house: House, sender: Sender, receiver: Receiver
) -> None:
    wants = listen(database, house, receiver.url, "balance.low")
    listen(database, house, receiver.url, "review.resolved")
    for _ in range(2):
        tell(database, house)
        sender.round()
    assert len(receiver.calls) == 1
    headers, body = receiver.calls[0]
    verified = signed(wants.secrets[0], headers, body)
    assert verified["type"] == "balance.low"
    assert verified["data"] == {"available": "1.5"}
    (found,) = listed(database, house)
    assert (found.state, found.attempts, found.last_status) == ("delivered", 1, 200)
    assert headers["webhook-id"] == found.notice_id
    assert headers["host"] == f"127.0.0.1:{receiver.port}"


def signed(secret: str, headers: dict[str, str], body: bytes) -> Any:
    """What the library makes of a delivery; its tolerance is of the real clock, so time is ours."""

    at = datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
    expected = Webhook(secret).sign(headers["webhook-id"], at, body.decode())
    if expected not in headers["webhook-signature"].split(" "):
        raise WebhookVerificationError(headers["webhook-signature"])
    return json.loads(body)


def test_a_rotated_secret_signs_beside_the_new_one_until_its_overlap_ends(
    database: Engine, house: House, sender: Sender, receiver: Receiver, held_clock: HeldClock
) -> None:
    old = listen(database, house, receiver.url)
    with transaction(database) as connection:
        new = endpoints.rotate(connection, house.tenant_id, old.id, 60)
    for cause, seconds in (("1", 59), ("2", 1)):
        held_clock.advance(seconds)
        tell(database, house, cause)
        sender.round()
    for call in receiver.calls:
        signed(new.secrets[0], *call)
    signed(old.secrets[0], *receiver.calls[0])
    with pytest.raises(WebhookVerificationError):
        signed(old.secrets[0], *receiver.calls[1])


def test_a_failing_receiver_is_tried_again_on_schedule_until_it_is_given_up(
    database: Engine, house: House, sender: Sender, receiver: Receiver, held_clock: HeldClock
) -> None:
    listen(database, house, receiver.url)
    receiver.status = 302  # a redirect is an answer, and no way on
    tell(database, house)
    for attempt, wait_s in enumerate(SCHEDULE_S):
        held_clock.advance(wait_s - 1)
        if attempt:
            assert sender.round() == 0
        held_clock.advance(wait_s * 0.1 + 2)
        assert sender.round() == 1
    (found,) = listed(database, house)
    assert (found.state, found.attempts, found.last_status) == ("failed", len(SCHEDULE_S), 302)
    assert len({headers["webhook-id"] for headers, _ in receiver.calls}) == 1
    held_clock.advance(10**6)
    assert sender.round() == 0
    receiver.status = 204
    with transaction(database) as connection:
        deliveries.replay(connection, house.tenant_id, found.seq)
    assert sender.round() == 1
    assert listed(database, house)[0].state == "delivered"


@pytest.mark.parametrize(("drips", "state"), [("headers", "waiting"), ("body", "delivered")])
def test_a_receiver_whose_answer_never_ends_keeps_nobody_waiting(
    database: Engine,
    house: House,
    sender: Sender,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    drips: str,
    state: str,
) -> None:
    monkeypatch.setattr(sending, "TIMEOUT_S", 0.3)
    listen(database, house, receiver.url)
    receiver.drips = drips
    tell(database, house)
    sender.round()
    (found,) = listed(database, house)
    assert (found.state, found.attempts) == (state, 1)
    assert found.last_error == (None if state == "delivered" else "it took longer than 0.3 s")


def test_a_receiver_that_is_gone_is_told_nothing_more(
    database: Engine, house: House, sender: Sender, receiver: Receiver
) -> None:
    endpoint = listen(database, house, receiver.url)
    receiver.status = 410
    tell(database, house)
    tell(database, house, "2")
    tell(database, house, "3")
    for _ in range(3):
        sender.round()
    assert len(receiver.calls) == 1
    with snapshot(database) as connection:
        found = endpoints.require(connection, house.tenant_id, endpoint.id)
    assert found.disabled_reason == "it answered 410"
    assert {each.state for each in listed(database, house)} == {"failed"}


def test_receivers_that_never_answer_keep_no_other_waiting(
    database: Engine,
    house: House,
    held_clock: HeldClock,
    sender: Sender,
    receiver: Receiver,
    hung: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given four tenants with as many receivers that hang as they may have, and twice what each of
    them is to be told; then another's deliveries are made one a round, in order, and meanwhile
    every tenant has its places and no endpoint is called twice at a time.
    """
    monkeypatch.setattr(sending, "LOOK_AGAIN_S", 60)  # a round ends with a call
    for name in ("B", "C", "D", "E"):
        other = make_house(database, name)
        for _ in range(endpoints.ENDPOINTS_MAX):
            listen(database, other, hung)
        tell(database, other, "1")
        tell(database, other, "2")
    listen(database, house, receiver.url)
    told = [str(number) for number in range(5)]
    for cause in told:
        held_clock.advance(0.001)
        tell(database, house, cause, f"balance.low{cause}")
    for number in range(len(told)):
        assert sender.round() == 4 * sending.PLACES_OF_TENANT + 1
        assert len(receiver.calls) == number + 1
    assert [json.loads(body)["type"][-1] for _, body in receiver.calls] == told
    called = [due.endpoint for due in sender._calls.values()]
    assert len({endpoint.id for endpoint in called}) == len(called)
    assert set(Counter(each.tenant_id for each in called).values()) == {sending.PLACES_OF_TENANT}


def test_every_endpoint_has_its_turn_before_any_has_its_next(
    database: Engine,
    house: House,
    sender: Sender,
    receiver: Receiver,
    hung: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More receivers that hang than there are places, each with more to be told than that."""
    monkeypatch.setattr(sending, "PLACES", 3)
    monkeypatch.setattr(sending, "TIMEOUT_S", 0.05)
    order: list[str] = []
    claim = deliveries.claim

    def noted(connection: Connection, chosen: Sequence[int]) -> list[Due]:
        begun = claim(connection, chosen)
        order.extend(due.endpoint.id for due in begun)
        return begun

    monkeypatch.setattr(deliveries, "claim", noted)
    slow = [listen(database, house, hung).id for _ in range(7)]
    quick = listen(database, house, receiver.url).id
    for cause in range(3):
        tell(database, house, str(cause))
    while sender.round():
        pass
    turns = [order[start : start + 8] for start in range(0, 24, 8)]
    assert all(sorted(turn) == sorted([*slow, quick]) for turn in turns)


def test_what_another_gateway_has_claimed_is_left_to_it(
    database: Engine, house: House, sender: Sender, receiver: Receiver, held_clock: HeldClock
) -> None:
    listen(database, house, receiver.url)
    tell(database, house)
    with transaction(database) as connection:
        deliveries.plan(connection)
        assert len(deliveries.claim(connection, [deliveries.heads(connection)[0].seq])) == 1
    assert sender.round() == 0
    held_clock.advance(deliveries.LEASE_S)  # it died: its lease ends
    assert sender.round() == 1


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "169.254.169.254",
        "192.168.0.1",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
    ],
)
def test_no_name_leads_into_our_own_network(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    public = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("93.184.216.34", 443))
    private = (socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 443))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [public, private])
    with pytest.raises(ForbiddenAddress):
        resolve("https://hooks.example/x", allow_private=False)


def test_the_call_goes_to_the_address_that_was_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["93.184.216.34", "127.0.0.1"])  # a name that changes its mind

    def lookup(*_: object, **__: object) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), 443))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    target = resolve("https://hooks.example/x?y=1", allow_private=False)
    assert target.url == "https://93.184.216.34:443/x?y=1"
    assert (target.host, target.server_name) == ("hooks.example", "hooks.example")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "https://",
        "https://user:pass@example.com/",
        "https://example.com/#part",
        "https://example.com:x/",
        "https://exa mple.com/",
        "nonsense",
        "https://example.com/" + "x" * 2000,
    ],
)
def test_what_is_no_address_for_a_webhook_is_refused(url: str) -> None:
    with pytest.raises(InvalidParameter):
        check_url(url, allow_private=False)


def test_a_rotation_ends_no_overlap_that_an_earlier_one_promised(
    database: Engine, held_clock: HeldClock
) -> None:
    house = make_house(database)
    with transaction(database) as connection:
        endpoint = endpoints.create(connection, house.tenant_id, "https://hooks.example/x")
        (first,) = endpoint.secrets
        second, *kept = endpoints.rotate(connection, house.tenant_id, endpoint.id, 3600).secrets
        assert kept == [first]
    held_clock.advance(600)
    with pytest.raises(Conflict, match="overlap_s 0"), transaction(database) as connection:
        endpoints.rotate(connection, house.tenant_id, endpoint.id, 1)
    with transaction(database) as connection:
        third, *kept = endpoints.rotate(connection, house.tenant_id, endpoint.id, 0).secrets
        assert kept == [first]
        assert third not in {first, second}
    held_clock.advance(2999)
    with snapshot(database) as connection:
        assert endpoints.require(connection, house.tenant_id, endpoint.id).secrets == (third, first)
    held_clock.advance(1)
    with transaction(database) as connection:
        assert endpoints.require(connection, house.tenant_id, endpoint.id).secrets == (third,)
        _, *kept = endpoints.rotate(connection, house.tenant_id, endpoint.id, 1).secrets
        assert kept == [third]


def test_owners_manage_endpoints_of_their_own(
    sqlite_database: Engine, held_clock: HeldClock
) -> None:
    house, other = make_house(sqlite_database), make_house(sqlite_database, "Other")
    with make_client(sqlite_database, webhooks_router, webhooks_allow_private=False) as client:
        owner, stranger = bearer(house.owner), bearer(other.owner)
        body = {"url": "https://hooks.example/x", "types": ["balance.low"]}
        for unknown in ("invoice.payed", "balance.low\n", "balance"):
            wrong = client.post(
                "/webhooks/endpoints", headers=owner, json=body | {"types": [unknown]}
            )
            assert (wrong.status_code, wrong.json()["parameter"]) == (400, "types[0]")
        made = client.post("/webhooks/endpoints", headers=owner, json=body)
        assert made.status_code == 201, made.text
        endpoint = made.json()["endpoint"]["id"]
        path = f"/webhooks/endpoints/{endpoint}"
        rotated = client.post(f"{path}/rotate", headers=owner, json={"overlap_s": 60})
        assert rotated.json()["secret"] != made.json()["secret"]
        assert client.post(f"{path}/rotate", headers=stranger, json={}).status_code == 404
        assert client.post(f"{path}/rotate", headers=owner, json={}).status_code == 409
        assert client.delete(path, headers=stranger).status_code == 404
        private = client.post(
            "/webhooks/endpoints", headers=owner, json={"url": "http://127.0.0.1/"}
        )
        assert (private.status_code, private.json()["parameter"]) == (400, "url")
        with transaction(sqlite_database) as connection:
            for cause in ("1", "2"):
                announce(connection, house.tenant_id, "balance.low", cause, {})
            deliveries.plan(connection)
        page = client.get("/webhooks/deliveries?limit=1", headers=owner).json()
        rest = client.get(
            f"/webhooks/deliveries?limit=1&cursor={page['next_cursor']}", headers=owner
        ).json()
        assert (len(rest["items"]), rest["next_cursor"]) == (1, None)
        seq = page["items"][0]["id"]
        replay = f"/webhooks/deliveries/{seq}/replay"
        assert client.post(replay, headers=stranger).status_code == 404
        assert client.post(replay, headers=owner).json()["state"] == "waiting"
        assert client.delete(path, headers=owner).status_code == 204
        assert client.get("/webhooks/endpoints", headers=bearer(house.finance)).status_code == 403
        shown = client.get("/webhooks/endpoints", headers=owner).json()["items"]
        assert shown[0]["disabled_at"] is not None
