"""Clients that leave and processes that die: who pays for what, and that nothing stays open."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from decimal import Decimal

import httpx
import psutil
from flow_streams import events
from gateway_process import Gateway, GatewayHome, Tenant, make_tenant

# Undrafted and long: seconds of work even for a tiny model, so that leaving comes before the end.
LONG = {"prompt": "Once upon a time", "max_tokens": 1800, "seed": 3, "draft": False}


def wait_final(client: httpx.Client, generation_id: str) -> dict:
    """The generation, once it is in a final state."""
    for _ in range(200):
        view = client.get(f"/generations/{generation_id}").raise_for_status().json()
        if view["status"] not in {"admitted", "running"}:
            return view
        time.sleep(0.05)
    raise AssertionError(f"{generation_id} never ended")


def assert_nothing_held(client: httpx.Client) -> None:
    assert Decimal(client.get("/balance").raise_for_status().json()["held"]) == 0


def test_a_client_that_leaves_mid_stream_pays_for_the_committed_blocks_only(
    gateway: Gateway, tenant: Tenant
) -> None:
    with gateway.client(tenant.key) as client:
        seen = []
        with client.stream("POST", "/generate", json={**LONG, "stream": True}) as response:
            request_id = response.headers["request-id"]
            for name, data in events(response):
                assert name == "block"
                seen.append(data)
                if len(seen) == 3:
                    break
        view = wait_final(client, request_id)
        assert view["status"] == "cancelled"
        assert view["usage"]["output_tokens"] >= sum(block["tokens"] for block in seen)
        assert view["usage"]["output_tokens"] < LONG["max_tokens"]
        assert view["output"].startswith("".join(block["text"] for block in seen))
        receipt = view["receipt"]["receipt"]
        assert receipt["output"]["output_tokens"] == view["usage"]["output_tokens"]
        assert_nothing_held(client)
    gateway.home.assert_reconciled()


def test_a_client_that_leaves_after_the_last_block_has_left_no_request_unfinished(
    gateway: Gateway, tenant: Tenant
) -> None:
    """It has all that it asked for, and does not wait for the receipt."""
    with gateway.client(tenant.key) as client:
        for seed in range(8):
            body = {"prompt": "Once", "max_tokens": 6, "seed": seed, "stream": True}
            with client.stream("POST", "/generate", json=body) as response:
                request_id, received, tokens = response.headers["request-id"], events(response), 0
                while tokens < 6:
                    tokens += next(received)[1]["tokens"]
            view = wait_final(client, request_id)
            assert (view["status"], view["finish_reason"]) == ("completed", "length")
            assert view["usage"]["output_tokens"] == 6
    gateway.home.assert_reconciled()


def test_a_client_that_leaves_a_plain_request_ends_it_too(gateway: Gateway, tenant: Tenant) -> None:
    with gateway.client(tenant.key) as client:
        with contextlib.suppress(httpx.ReadTimeout):
            client.post("/generate", json=LONG, timeout=httpx.Timeout(10, read=0.15))
        listed = client.get("/receipts").raise_for_status().json()
        for _ in range(100):
            if listed["items"]:
                break
            time.sleep(0.05)
            listed = client.get("/receipts").raise_for_status().json()
        assert listed["items"]
        assert_nothing_held(client)
    gateway.home.assert_reconciled()


def test_a_cancel_storm_leaves_no_hold_open(gateway: Gateway, tenant: Tenant) -> None:
    ids: list[str] = []

    def leave_early(blocks: int) -> None:
        body = {**LONG, "seed": blocks, "stream": True}
        with (
            gateway.client(tenant.key) as client,
            client.stream("POST", "/generate", json=body) as response,
        ):
            ids.append(response.headers["request-id"])
            for count, _ in enumerate(events(response)):
                if count >= blocks:
                    return

    threads = [threading.Thread(target=leave_early, args=(n % 4,)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 24
    with gateway.client(tenant.key) as client:
        for request_id in ids:
            wait_final(client, request_id)
        assert_nothing_held(client)
    gateway.home.assert_reconciled()


def test_after_kill_9_every_request_is_final_and_delivered_blocks_are_billed_once(
    own_home: GatewayHome,
) -> None:
    tenant = make_tenant(own_home)
    seen: dict[str, list[dict]] = {}
    enough = threading.Event()

    def read(gateway: Gateway, seed: int) -> None:
        body = {**LONG, "seed": seed, "stream": True}
        try:
            with (
                gateway.client(tenant.key) as client,
                client.stream("POST", "/generate", json=body) as response,
            ):
                blocks = seen.setdefault(response.headers["request-id"], [])
                for name, data in events(response):
                    if name == "block":
                        blocks.append(data)
                    if len(seen) == 4 and all(len(b) > 2 for b in list(seen.values())):
                        enough.set()
        except httpx.TransportError:
            return

    gateway = Gateway.start(own_home)
    threads = [threading.Thread(target=read, args=(gateway, seed)) for seed in range(4)]
    for thread in threads:
        thread.start()
    assert enough.wait(timeout=60)
    gateway.kill()
    for thread in threads:
        thread.join()

    with own_home.running() as restarted, restarted.client(tenant.key) as client:
        for request_id, blocks in seen.items():
            view = client.get(f"/generations/{request_id}").raise_for_status().json()
            assert view["status"] in {"failed", "completed"}
            assert view["output"].startswith("".join(block["text"] for block in blocks))
            assert view["receipt"]["receipt"]["output"]["output_tokens"] >= sum(
                block["tokens"] for block in blocks
            )
        assert_nothing_held(client)
        receipts = client.get("/receipts").raise_for_status().json()["items"]
        assert len(receipts) == len(seen)
    own_home.assert_reconciled()


def test_the_engine_process_dying_fails_its_requests_and_the_gateway_goes_on(
    gateway: Gateway, tenant: Tenant
) -> None:
    with gateway.client(tenant.key) as client:
        with client.stream("POST", "/generate", json={**LONG, "stream": True}) as response:
            received = events(response)
            next(received)
            for child in psutil.Process(gateway.process.pid).children(recursive=True):
                child.kill()
            last = list(received)[-1]
        assert last[0] == "receipt"
        assert last[1]["status"] == "failed"
        for _ in range(200):
            if client.get("/ready").status_code == 200:
                break
            time.sleep(0.1)
        again = client.post("/generate", json={**LONG, "max_tokens": 8})
        assert again.raise_for_status().json()["status"] == "completed"
        assert again.json()["usage"]["energy_class"] == "estimated"
        assert_nothing_held(client)
    gateway.home.assert_reconciled()


def test_a_key_used_while_the_engine_was_away_can_be_used_again(
    gateway: Gateway, tenant: Tenant
) -> None:
    body, headers = {**LONG, "max_tokens": 8}, {"idempotency-key": "away"}
    with gateway.client(tenant.key) as client:
        for child in psutil.Process(gateway.process.pid).children(recursive=True):
            child.kill()
        answer = client.post("/generate", json=body, headers=headers)
        for _ in range(200):
            if answer.status_code == 200 and answer.json()["status"] == "completed":
                break
            assert answer.status_code == 503 or answer.json()["status"] == "failed"
            if answer.status_code == 200:
                headers = {"idempotency-key": "after"}  # it had begun, and that is its answer
            time.sleep(0.1)
            answer = client.post("/generate", json=body, headers=headers)
        assert answer.json()["usage"]["output_tokens"] == 8
        assert_nothing_held(client)
    gateway.home.assert_reconciled()


def test_what_outlasts_a_stopping_gateway_ends_at_the_operators_expense(
    own_home: GatewayHome,
) -> None:
    """Neither left, so neither is a tenant's cancellation, and both are told what became of it."""
    own_home.settings["DFLASH_DRAIN_S"] = "0"
    tenant = make_tenant(own_home)
    whole: list[httpx.Response] = []
    told: list[tuple[str, dict]] = []
    begun = threading.Event()

    with own_home.running() as gateway:

        def wait_for_all() -> None:
            with gateway.client(tenant.key) as client:
                whole.append(client.post("/generate", json=LONG))

        def read_blocks() -> None:
            body = {**LONG, "seed": 4, "stream": True}
            with (
                gateway.client(tenant.key) as client,
                client.stream("POST", "/generate", json=body) as response,
            ):
                for event in events(response):
                    told.append(event)
                    begun.set()

        threads = [threading.Thread(target=work) for work in (wait_for_all, read_blocks)]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        with gateway.client(tenant.key) as client:
            until = time.monotonic() + 30
            while Decimal(client.get("/balance").json()["held"]) == 0 and time.monotonic() < until:
                time.sleep(0.05)
        gateway.stop()
        for thread in threads:
            thread.join()
        log = gateway.log.read_text()
    assert "Exception in ASGI application" not in log

    assert told[0][0] == "block"
    name, problem = told[-1]
    assert (name, problem["code"]) == ("error", "not_settled")
    assert "is being stopped" in problem["detail"]
    refused = [problem, *(answer.json() for answer in whole)]
    assert [answer.status_code for answer in whole] == [503]
    assert {each["code"] for each in refused} == {"not_settled"}
    own_home.assert_reconciled()
    for each in refused:
        shown = own_home.dflash("receipt", "show", each["request_id"]).stdout
        receipt = json.loads(shown)["receipt"]
        assert (receipt["status"], receipt["ended_by"]) == ("failed", "operator")
        details = {line["detail"] for line in receipt["lines"] if line["component"] == "output"}
        assert not any(detail.startswith("fragment") for detail in details)


def test_what_keeps_a_gateway_from_starting_is_one_line(
    gateway: Gateway, own_home: GatewayHome
) -> None:
    second = gateway.home.dflash("serve", "--port", "0", check=False)
    assert second.returncode == 1
    assert second.stderr.strip().splitlines()[-1] == (
        "Error: another gateway serves this database; stop it first"
    )
    port = gateway.url.rpartition(":")[2]
    taken = own_home.dflash("serve", "--port", port, check=False)
    assert (taken.returncode, taken.stderr) == (
        1,
        f"Error: port {port} of 127.0.0.1 is taken: by another gateway? --port takes another\n",
    )
    own_home.settings["DFLASH_NOPE"] = "1"
    refused = own_home.dflash("serve", check=False)
    assert refused.returncode == 1
    assert "DFLASH_NOPE is no setting" in refused.stderr
