"""What can't be served is refused precisely, in the house's shape, before anything is held."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from gateway_process import Gateway, Tenant

CASES: list[tuple[str, dict[str, Any], int, str | None]] = [
    ("no prompt", {}, 400, "prompt"),
    ("both forms", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, 400, "prompt"),
    ("empty messages", {"messages": []}, 400, "messages"),
    ("unknown role", {"messages": [{"role": "wizard", "content": "a"}]}, 400, "messages"),
    ("unknown model", {"prompt": "a", "model": "gpt-9"}, 404, None),
    ("no tokens", {"prompt": "a", "max_tokens": 0}, 400, "max_tokens"),
    ("negative tokens", {"prompt": "a", "max_tokens": -5}, 400, "max_tokens"),
    ("absurd tokens", {"prompt": "a", "max_tokens": 10**9}, 400, "max_tokens"),
    ("beyond the context", {"prompt": "word " * 5000}, 400, "prompt"),
    ("unknown option", {"prompt": "a", "tempature": 1}, 400, "tempature"),
    ("hot", {"prompt": "a", "temperature": 9}, 400, "temperature"),
    ("text for a number", {"prompt": "a", "temperature": "hot"}, 400, "temperature"),
    ("top_p of zero", {"prompt": "a", "top_p": 0}, 400, "top_p"),
    ("top_k of zero", {"prompt": "a", "top_k": 0}, 400, "top_k"),
    ("top_k beyond 64 bits", {"prompt": "a", "top_k": 2**64}, 400, "top_k"),
    ("warm beyond use", {"prompt": "a", "temperature": 1e-7}, 400, "temperature"),
    ("endless repetition", {"prompt": "a", "repetition_penalty": 0}, 400, "repetition_penalty"),
    ("absurd frequency", {"prompt": "a", "frequency_penalty": 2.5}, 400, "frequency_penalty"),
    ("absurd presence", {"prompt": "a", "presence_penalty": -3}, 400, "presence_penalty"),
    ("infinite penalty", {"prompt": "a", "presence_penalty": 10**400}, 400, "presence_penalty"),
    ("bias of no token", {"prompt": "a", "logit_bias": {"269": 1}}, 400, "logit_bias"),
    ("bias below zero", {"prompt": "a", "logit_bias": {"-1": 1}}, 400, "logit_bias"),
    ("bias of a word", {"prompt": "a", "logit_bias": {"the": 1}}, 400, "logit_bias"),
    ("heavy bias", {"prompt": "a", "logit_bias": {"5": 101}}, 400, "logit_bias"),
    ("biases", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(301)}}, 400, "logit_bias"),
    ("many logprobs", {"prompt": "a", "top_logprobs": 21}, 400, "top_logprobs"),
    ("no schema", {"prompt": "a", "json_schema": {"type": "wizard"}}, 400, "json_schema"),
    ("half a schema", {"prompt": "a", "json_schema": {"not": {}}}, 400, "json_schema"),
    ("schema of text", {"prompt": "a", "json_schema": "object"}, 400, "json_schema"),
    ("control character", {"prompt": "a", "end_user": "a\x00"}, 400, "end_user"),
    ("a line's end", {"prompt": "a", "end_user": "a\n"}, 400, "end_user"),
    ("a line's end in a tag", {"prompt": "a", "tags": {"a": "b\n"}}, 400, "tags"),
    ("a line's end in an amount", {"prompt": "a", "max_cost": "1\n"}, 400, "max_cost"),
    ("negative seed", {"prompt": "a", "seed": -1}, 400, "seed"),
    ("many stops", {"prompt": "a", "stop": list("abcde")}, 400, "stop"),
    ("empty stop", {"prompt": "a", "stop": [""]}, 400, "stop"),
    ("brown energy", {"prompt": "a", "energy": "brown"}, 400, "energy"),
    ("fine joules", {"prompt": "a", "max_joules": "3.25"}, 400, "max_joules"),
    ("no joules", {"prompt": "a", "max_joules": "0"}, 400, "max_joules"),
    ("free lunch", {"prompt": "a", "max_cost": "-1"}, 400, "max_cost"),
    ("no time", {"prompt": "a", "deadline_ms": 0}, 400, "deadline_ms"),
]


@pytest.mark.parametrize("door", ["/generate", "/estimate"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_request_that_cannot_be_honoured_names_what_is_wrong(
    gateway: Gateway,
    tenant: Tenant,
    case: tuple[str, dict[str, Any], int, str | None],
    door: str,
) -> None:
    _, body, status, parameter = case
    with gateway.client(tenant.key) as client:
        answer = client.post(door, json=body)
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"].startswith("application/problem+json")
        problem = answer.json()
        assert {"type", "title", "status", "detail"} <= problem.keys()
        if parameter is not None:
            assert parameter in str(problem.get("parameter")), problem
        assert Decimal(client.get("/balance").json()["held"]) == 0


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"", b"\xff\xfe", b'{"prompt": "a", "temperature": NaN}', b'"text"'],
)
def test_a_body_that_is_not_such_json_is_a_400(
    gateway: Gateway, tenant: Tenant, body: bytes
) -> None:
    with gateway.client(tenant.key) as client:
        answer = client.post("/generate", content=body)
    assert answer.status_code == 400
    assert answer.headers["content-type"].startswith("application/problem+json")


def test_a_body_beyond_the_limit_is_a_413(gateway: Gateway, tenant: Tenant) -> None:
    with gateway.client(tenant.key) as client:
        assert client.post("/generate", json={"prompt": "a" * (1 << 21)}).status_code == 413


@pytest.mark.parametrize("key", [None, "nonsense", "dfk_live_0_wrong"])
def test_without_a_living_key_there_is_no_answer(gateway: Gateway, key: str | None) -> None:
    with gateway.client(key) as client:
        answer = client.post("/generate", json={"prompt": "a"})
    assert answer.status_code == 401
    assert "www-authenticate" in answer.headers


def test_an_idempotency_key_must_be_one(gateway: Gateway, tenant: Tenant) -> None:
    with gateway.client(tenant.key) as client:
        answer = client.post(
            "/generate", json={"prompt": "a"}, headers={"idempotency-key": "x" * 300}
        )
    assert answer.status_code == 400


def test_text_with_nul_and_odd_characters_is_served(gateway: Gateway, tenant: Tenant) -> None:
    with gateway.client(tenant.key) as client:
        for prompt in ("a\x00b", "\u202eabc", "😀" * 20, "\r\n\t"):
            answer = client.post("/generate", json={"prompt": prompt, "max_tokens": 4})
            assert answer.status_code == 200, answer.text
