"""One request through the real gateway and engine processes, to a receipt that verifies."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from pathlib import Path

import pytest
from example_receipts import example, form
from flow_streams import events
from gateway_process import Gateway, Tenant, make_tenant

PROMPT = {"prompt": "def add(a, b):", "max_tokens": 24, "seed": 7}


def test_an_answer_comes_with_a_receipt_that_verifies_offline(
    gateway: Gateway, tenant: Tenant, tmp_path: Path
) -> None:
    with gateway.client(tenant.key) as client:
        answer = client.post("/generate", json=PROMPT).raise_for_status().json()
        keys = client.get("/receipt-keys").raise_for_status().json()
    assert answer["status"] == "completed"
    assert answer["usage"]["output_tokens"] == 24
    receipt = answer["receipt"]["receipt"]
    salted = bytes.fromhex(answer["receipt"]["content_salt"]) + answer["output"].encode()
    assert receipt["output"]["sha256"] == hashlib.sha256(salted).hexdigest()
    assert sum(Decimal(line["amount"]) for line in receipt["lines"]) == Decimal(receipt["total"])
    assert receipt["energy"]["class"] in {"measured", "estimated"}
    assert form(answer["receipt"]) == form(example("estimated")["receipt"]), "make it anew"

    receipt_file, keys_file = tmp_path / "receipt.json", tmp_path / "keys.json"
    receipt_file.write_text(json.dumps(answer["receipt"]))
    keys_file.write_text(json.dumps(keys))
    home = gateway.home
    home.dflash("receipt", "verify", str(receipt_file), "--keys", str(keys_file))
    answer_file = tmp_path / "answer.json"
    answer_file.write_text(json.dumps(answer))
    whole = home.dflash("receipt", "verify", str(answer_file), "--keys", str(keys_file))
    assert "not checked" not in whole.stdout

    forged = json.loads(receipt_file.read_text())
    forged["receipt"]["total"] = "0"
    receipt_file.write_text(json.dumps(forged))
    refused = home.dflash(
        "receipt", "verify", str(receipt_file), "--keys", str(keys_file), check=False
    )
    assert refused.returncode != 0


def test_the_balance_falls_by_exactly_the_receipts_total(gateway: Gateway, tenant: Tenant) -> None:
    with gateway.client(tenant.key) as client:
        before = client.get("/balance").raise_for_status().json()
        answer = client.post("/generate", json=PROMPT).raise_for_status().json()
        after = client.get("/balance").raise_for_status().json()
    spent = Decimal(before["available"]) - Decimal(after["available"])
    assert spent == Decimal(answer["cost"]) > 0
    assert Decimal(after["held"]) == 0


def test_reading_a_generation_answers_the_same_and_never_bills(
    gateway: Gateway, tenant: Tenant
) -> None:
    with gateway.client(tenant.key) as client:
        answer = client.post("/generate", json=PROMPT).raise_for_status().json()
        balance = client.get("/balance").json()
        for _ in range(3):
            assert client.get(f"/generations/{answer['id']}").raise_for_status().json() == answer
        assert client.get("/balance").json() == balance


def test_a_stream_shows_the_same_text_block_by_block_and_the_receipt_last(
    gateway: Gateway, tenant
) -> None:
    with gateway.client(tenant.key) as client:
        whole = client.post("/generate", json=PROMPT).raise_for_status().json()
        with client.stream("POST", "/generate", json={**PROMPT, "stream": True}) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            received = list(events(response))
    assert [name for name, _ in received[:-1]] == ["block"] * (len(received) - 1)
    assert received[-1][0] == "receipt"
    assert "".join(block["text"] for _, block in received[:-1]) == whole["output"]
    assert [block["index"] for _, block in received[:-1]] == list(range(len(received) - 1))
    assert received[-1][1]["output"] == whole["output"]


def test_drafting_changes_no_token_and_the_same_seed_repeats(
    gateway: Gateway, tenant: Tenant
) -> None:
    sampled = {**PROMPT, "temperature": 0.9, "top_p": 0.95}
    with gateway.client(tenant.key) as client:
        outputs = {
            client.post("/generate", json={**sampled, "draft": draft}).json()["output"]
            for draft in (True, False, True)
        }
    assert len(outputs) == 1


def test_a_prompt_asked_again_is_found_cached_and_answer_receipt_and_metrics_say_so(
    gateway: Gateway, tenant: Tenant
) -> None:
    asked = {"prompt": "# asked by nobody before\n", "max_tokens": 8, "draft_scope": "public"}
    with gateway.client(tenant.key) as client:
        first, second = (
            client.post("/generate", json=asked).raise_for_status().json() for _ in range(2)
        )
        page = client.get("/metrics").raise_for_status()
    assert page.headers["content-type"].count("charset") == 1
    metrics = page.text
    assert first["output"] == second["output"]
    assert first["usage"]["cached_input_tokens"] == 0
    found = second["usage"]["cached_input_tokens"]
    assert found == second["usage"]["input_tokens"] - 1
    assert second["receipt"]["receipt"]["output"]["cached_input_tokens"] == found
    counters = dict(
        line.split() for line in metrics.splitlines() if line[:1] != "#" and "{" not in line
    )
    assert float(counters["dflash_engine_cached_prompt_tokens_total"]) >= found
    assert 'dflash_step_cost_ms{rows="1"}' in metrics
    assert 0 <= float(counters["dflash_node_efficiency"]) < 1


def test_engine_events_rated_lines_and_ledger_agree(gateway: Gateway, tenant: Tenant) -> None:
    with gateway.client(tenant.key) as client:
        for seed in range(5):
            client.post("/generate", json={**PROMPT, "seed": seed}).raise_for_status()
    gateway.home.assert_reconciled()


@pytest.mark.parametrize("tariff", ["token", "semantic", "confidence", "energy"])
def test_every_shipped_tariff_charges_a_request(
    gateway: Gateway, tenant: Tenant, tariff: str
) -> None:
    other = make_tenant(gateway.home, tariff=tariff)
    with gateway.client(other.key) as client:
        answer = client.post("/generate", json=PROMPT).raise_for_status().json()
    assert answer["receipt"]["receipt"]["tariff"]["name"] == tariff
    assert Decimal(answer["cost"]) > 0


def test_a_trace_shows_every_step_of_a_request_to_its_tenant_alone(
    gateway: Gateway, tenant: Tenant
) -> None:
    stranger = make_tenant(gateway.home)
    with gateway.client(tenant.key) as client:
        answer = client.post("/generate", json=PROMPT).raise_for_status().json()
        address = f"/generations/{answer['id']}/trace"
        trace = client.get(address).raise_for_status().json()
    blocks, usage, drafting = trace["blocks"], answer["usage"], answer["drafting"]
    assert (trace["status"], trace["finish_reason"]) == ("completed", "length")
    assert trace["input_tokens"] == usage["input_tokens"]
    assert trace["cached_input_tokens"] == usage["cached_input_tokens"]
    assert [block["index"] for block in blocks] == list(range(len(blocks)))
    known = "unavailable" if usage["joules"] is None else "settled"
    assert {block["energy"] for block in blocks} == {known}
    assert "".join(block["text"] for block in blocks) == answer["output"]
    assert sum(len(block["tokens"]) for block in blocks) == usage["output_tokens"]
    for name in ("drafted_nodes", "accepted_tokens"):
        assert sum(block[name] for block in blocks) == drafting[name]
    assert blocks[0]["prefill_tokens"] == usage["input_tokens"] - usage["cached_input_tokens"]
    assert not any(block["prefill_tokens"] for block in blocks[1:])
    ended = [block["ended_us"] for block in blocks]
    assert 0 < trace["first_block_us"] == ended[0]
    assert ended == sorted(ended)
    assert ended[-1] <= trace["ended_us"]
    scores = [Decimal(token["logprob"]) for block in blocks for token in block["tokens"]]
    assert sum(scores) == Decimal(answer["confidence"]["sum_logprob"])
    assert all(Decimal(token["entropy"]) >= 0 for block in blocks for token in block["tokens"])
    with gateway.client(stranger.key) as client:
        assert client.get(address).status_code == 404


def test_a_tenant_audits_its_own_receipt_and_nobody_elses(gateway: Gateway, tenant: Tenant) -> None:
    stranger = make_tenant(gateway.home)
    with gateway.client(tenant.key) as client:
        answer = client.post("/generate", json={**PROMPT, "temperature": 0.8}).json()
        address = f"/generations/{answer['id']}/audit"
        balance = client.get("/balance").json()
        audit = client.post(address).raise_for_status().json()
        assert client.get("/balance").json() == balance
    assert audit["differences"] == []
    assert audit["tokens"] == answer["usage"]["output_tokens"]
    with gateway.client(stranger.key) as client:
        assert client.post(address).status_code == 404
