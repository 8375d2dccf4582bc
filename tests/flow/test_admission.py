"""The door under load: credit for k admits k, and a repeated key never generates twice."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import httpx
from gateway_process import Gateway, GatewayHome, Tenant, make_tenant

from api import keys
from api.roles import Role
from metering.database import open_database, transaction

BODY = {"prompt": "Tell me a story.", "max_tokens": 16, "seed": 1}


def test_parallel_requests_against_credit_for_some_admit_no_more(
    gateway: Gateway,
) -> None:
    home = gateway.home
    rich = make_tenant(home)
    with gateway.client(rich.key) as client:
        quote = client.post("/estimate", json=BODY).raise_for_status().json()
    worst = Decimal(quote["worst"])
    poor = make_tenant(home, credit=str(worst * 3))

    def ask(seed: int) -> httpx.Response:
        with gateway.client(poor.key) as client:
            return client.post("/generate", json={**BODY, "seed": seed})

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    admitted = [a for a in answers if a.status_code == 200]
    refused = [a for a in answers if a.status_code == 402]
    assert len(admitted) + len(refused) == 12
    assert refused
    spent = sum(Decimal(a.json()["cost"]) for a in admitted)
    with gateway.client(poor.key) as client:
        balance = client.get("/balance").json()
    assert Decimal(balance["available"]) == worst * 3 - spent >= 0
    assert Decimal(balance["held"]) == 0
    problem = refused[0].json()
    assert problem["type"].endswith("insufficient_credit")
    assert Decimal(problem["needed"]) > Decimal(problem["available"])
    home.assert_reconciled()


def test_a_repeated_idempotency_key_replays_the_first_answer(
    gateway: Gateway, tenant: Tenant
) -> None:
    headers = {"idempotency-key": "order-1"}
    with gateway.client(tenant.key) as client:
        first = client.post("/generate", json=BODY, headers=headers).raise_for_status()
        balance = client.get("/balance").json()
        again = client.post("/generate", json=BODY, headers=headers).raise_for_status()
        other = client.post("/generate", json={**BODY, "seed": 2}, headers=headers)
        assert again.json() == first.json()
        assert again.headers["idempotent-replayed"] == "true"
        assert other.status_code == 422
        assert client.get("/balance").json() == balance


def test_a_test_keys_answer_is_no_replay_of_a_live_ones_nor_the_other_way_round(
    gateway: Gateway, tenant: Tenant
) -> None:
    database = open_database(gateway.home.resolved_database_url)
    with transaction(database) as connection:
        testing = keys.create(
            connection, tenant_id=tenant.id, role=Role.DEVELOPER, name="t", test_mode=True
        )
    database.dispose()
    for first, second in ((testing.secret, tenant.key), (tenant.key, testing.secret)):
        headers = {"idempotency-key": first}
        with gateway.client(first) as client:
            answer = client.post("/generate", json=BODY, headers=headers).raise_for_status()
        with gateway.client(second) as client:
            refused = client.post("/generate", json=BODY, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (422, "idempotency_mismatch")
        with gateway.client(first) as client:
            again = client.post("/generate", json=BODY, headers=headers).raise_for_status()
        assert again.json() == answer.json()


def test_a_key_whose_answer_was_erased_says_so_and_charges_nothing(
    gateway: Gateway, tenant: Tenant
) -> None:
    headers = {"idempotency-key": "erased"}
    body = {**BODY, "stop": ["confidential"]}
    with gateway.client(tenant.key) as client:
        answer = client.post("/generate", json=body, headers=headers).raise_for_status().json()
        balance = client.get("/balance").json()
        gateway.home.dflash("retention", "erase", tenant.id, "--request", answer["id"])
        for sent in (body, {**body, "prompt": "A guess."}):
            refused = client.post("/generate", json=sent, headers=headers)
            assert (refused.status_code, "erased" in refused.json()["detail"]) == (409, True)
        assert client.get("/balance").json() == balance
        audit = client.post(f"/generations/{answer['id']}/audit")
        assert audit.status_code == 409
        assert "can't be generated again" in audit.json()["detail"]
        left = client.get(f"/generations/{answer['id']}").raise_for_status().json()
        trace = client.get(f"/generations/{answer['id']}/trace").raise_for_status().json()
    assert (trace["status"], trace["blocks"], trace["first_block_us"]) == ("completed", None, None)
    assert (left["output"], left["cost"]) == (None, answer["cost"])
    kept = {name: part for name, part in answer["receipt"].items() if name != "content_salt"}
    assert left["receipt"] == kept
    assert "stop" in left["receipt"]["receipt"]["parameters"]


def test_parallel_requests_with_one_idempotency_key_generate_once(
    gateway: Gateway, tenant: Tenant
) -> None:
    def ask(_: int) -> httpx.Response:
        with gateway.client(tenant.key) as client:
            return client.post("/generate", json=BODY, headers={"idempotency-key": "once"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert {a.status_code for a in answers} <= {200, 409}
    assert len({a.json()["id"] for a in answers if a.status_code == 200}) == 1
    with gateway.client(tenant.key) as client:
        assert len(client.get("/receipts").json()["items"]) == 1


def test_a_stream_is_replayed_block_by_block(gateway: Gateway, tenant: Tenant) -> None:
    headers = {"idempotency-key": "stream-1"}
    with gateway.client(tenant.key) as client:
        first = client.post("/generate", json={**BODY, "stream": True}, headers=headers)
        again = client.post("/generate", json={**BODY, "stream": True}, headers=headers)
    assert again.text == first.text
    assert again.headers["idempotent-replayed"] == "true"


def test_max_cost_cuts_the_answer_at_a_prefix_that_it_pays_for(
    gateway: Gateway, tenant: Tenant
) -> None:
    with gateway.client(tenant.key) as client:
        body = {"prompt": "Once", "max_tokens": 200, "seed": 5}
        whole = client.post("/generate", json=body).raise_for_status().json()
        limit = Decimal(whole["cost"]) / 2
        cut = (
            client.post("/generate", json={**body, "max_cost": f"{limit:.9f}"})
            .raise_for_status()
            .json()
        )
        assert cut["finish_reason"] == "budget"
        assert Decimal(cut["cost"]) <= limit
        assert whole["output"].startswith(cut["output"].rstrip("\ufffd"))
        assert 0 < cut["usage"]["output_tokens"] < whole["usage"]["output_tokens"]
    gateway.home.assert_reconciled()


def test_rates_are_limited_per_key(own_home: GatewayHome) -> None:
    tenant = make_tenant(own_home)
    own_home.settings["DFLASH_REQUESTS_PER_MINUTE"] = "3"
    with own_home.running() as gateway, gateway.client(tenant.key) as client:
        answers = [client.post("/generate", json=BODY) for _ in range(8)]
    limited = [a for a in answers if a.status_code == 429]
    assert limited
    assert int(limited[0].headers["retry-after"]) > 0
