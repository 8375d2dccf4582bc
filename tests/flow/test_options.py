"""Options of `/generate`, from the request to the receipt."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonschema
from flow_streams import events
from gateway_process import Gateway, Tenant

from metering import content_hash

SCHEMA = {
    "type": "object",
    "properties": {"the": {"enum": ["and", "then"]}, "on": {"type": "boolean"}},
    "required": ["the", "on"],
    "additionalProperties": False,
}
BODY: dict[str, Any] = {
    "prompt": "the and the and ",
    "max_tokens": 64,
    "temperature": 1,
    "seed": 11,
    "repetition_penalty": 1.1,
    "presence_penalty": 0.5,
    "logit_bias": {"40": -1.5},
    "json_schema": SCHEMA,
    "top_logprobs": 2,
}
PLAIN: dict[str, Any] = {"prompt": "the", "max_tokens": 3}


def test_an_answer_under_options_is_shown_token_by_token_and_stands_on_its_receipt(
    gateway: Gateway, tenant: Tenant
) -> None:
    with gateway.client(tenant.key) as client:
        answer = client.post("/generate", json=BODY).json()
        again = client.get(f"/generations/{answer['id']}").json()
        undrafted = client.post("/generate", json=BODY | {"draft": False}).json()
    jsonschema.validate(json.loads(answer["output"]), SCHEMA)
    assert again == answer
    assert (undrafted["output"], undrafted["logprobs"]) == (answer["output"], answer["logprobs"])

    tokens = answer["logprobs"]
    assert len(tokens) == answer["usage"]["output_tokens"]
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == answer["output"]
    assert all(len(token["top"]) == 2 for token in tokens)
    forced = sum(token["forced"] for token in tokens)
    assert 0 < forced == answer["usage"]["forced_tokens"]
    assert answer["confidence"]["tokens"] == len(tokens) - forced

    receipt = answer["receipt"]["receipt"]
    assert receipt["output"]["forced_tokens"] == forced
    assert receipt["confidence"]["tokens"] == len(tokens) - forced
    parameters = receipt["parameters"]
    assert (parameters["repetition_penalty"], parameters["presence_penalty"]) == ("1.1", "0.5")
    text = json.dumps(SCHEMA, sort_keys=True, separators=(",", ":"))
    salt = answer["receipt"]["content_salt"]
    assert parameters["json_schema"] == {"sha256": content_hash.of_text(salt, text)}


def test_a_streams_blocks_carry_their_tokens_if_they_were_asked_for(
    gateway: Gateway, tenant: Tenant
) -> None:
    with gateway.client(tenant.key) as client:
        *blocks, last = events(client.post("/generate", json=BODY | {"stream": True}))
        *plain, _ = events(client.post("/generate", json=PLAIN | {"stream": True}))
    told = [token for _, block in blocks for token in block["logprobs"]]
    assert told == last[1]["logprobs"]
    assert all(block["logprobs"] is None for _, block in plain)


def test_why_a_generation_failed_is_said_wherever_it_is_read(
    gateway: Gateway, tenant: Tenant
) -> None:
    endless = {
        "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}},
        "$ref": "#/$defs/n",
    }
    endless["$defs"]["n"]["required"] = ["n"]  # type: ignore[index]
    with gateway.client(tenant.key) as client:
        answer = client.post("/generate", json={**PLAIN, "json_schema": endless}).json()
        kind = {"type": "json_schema", "json_schema": {"name": "endless", "schema": endless}}
        chat = {
            "model": answer["model"],
            "messages": [{"role": "user", "content": "the"}],
            "response_format": kind,
        }
        error = client.post("/v1/chat/completions", json=chat).json()["error"]
        streamed = client.post("/v1/chat/completions", json={**chat, "stream": True}).text
    assert (answer["status"], answer["cost"]) == ("failed", "0")
    assert answer["failure"] == "the schema became too complex to follow"
    assert answer["failure"] in error["message"]
    assert error["code"] == "generation_failed"
    assert answer["failure"] in streamed


def test_an_answer_ends_with_the_joules_that_it_may_take(gateway: Gateway, tenant: Tenant) -> None:
    body = {"prompt": "the", "max_tokens": 1500, "max_joules": "0.4", "draft": False}
    with gateway.client(tenant.key) as client:
        answer = client.post("/generate", json=body).raise_for_status().json()
        audit = client.post(f"/generations/{answer['id']}/audit").raise_for_status().json()
    usage, receipt = answer["usage"], answer["receipt"]["receipt"]
    assert (answer["finish_reason"], receipt["ended_by"]) == ("budget", "tenant")
    assert 0 < usage["output_tokens"] < 1500
    assert Decimal(usage["joules"]) >= Decimal("0.4")
    assert receipt["parameters"]["max_energy_uj"] == 400_000
    assert audit["differences"] == []
