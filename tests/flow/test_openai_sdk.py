"""OpenAI's own SDK against `/v1`: it streams, and reads usage and cost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal

import jsonschema
import openai
import pytest
from gateway_process import Gateway, Tenant


@pytest.fixture
def sdk(gateway: Gateway, tenant: Tenant) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=tenant.key, max_retries=0) as client:
        yield client


@pytest.fixture
def model(sdk: openai.OpenAI) -> str:
    (served,) = sdk.models.list().data
    assert sdk.models.retrieve(served.id).id == served.id
    return served.id


def test_a_chat_answer_carries_usage_and_cost(sdk: openai.OpenAI, model: str) -> None:
    answer = sdk.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=12,
        seed=4,
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["cost"] > 0
    assert Decimal(answer.usage.model_extra["dflash"]["cost"]) > 0


def test_a_streamed_chat_is_the_same_text_and_ends_with_usage(
    sdk: openai.OpenAI, model: str
) -> None:
    arguments = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 12,
        "seed": 4,
    }
    whole = sdk.chat.completions.create(**arguments)
    parts = list(
        sdk.chat.completions.create(
            **arguments, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(p.choices[0].delta.content or "" for p in parts if p.choices)
    assert text == whole.choices[0].message.content
    assert parts[0].choices[0].delta.role == "assistant"
    assert [p.choices[0].finish_reason for p in parts if p.choices][-1] in {"stop", "length"}
    assert parts[-1].choices == []
    assert parts[-1].usage is not None
    assert parts[-1].usage.model_extra["cost"] > 0
    assert all(p.usage is None for p in parts[:-1])
    assert len({p.id for p in parts}) == 1


def test_a_text_completion_and_its_stream_agree(sdk: openai.OpenAI, model: str) -> None:
    whole = sdk.completions.create(model=model, prompt="def f():", max_tokens=10, seed=2)
    parts = sdk.completions.create(
        model=model, prompt="def f():", max_tokens=10, seed=2, stream=True
    )
    assert "".join(p.choices[0].text for p in parts) == whole.choices[0].text


def test_choices_are_generations_of_their_own_with_one_prompt_between_them(
    sdk: openai.OpenAI, model: str, gateway: Gateway, tenant: Tenant
) -> None:
    arguments = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 12,
        "seed": 4,
    }
    single = sdk.chat.completions.create(**arguments)
    several = {**arguments, "n": 3, "extra_headers": {"idempotency-key": "three"}}
    answer = sdk.chat.completions.create(**several)
    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert texts[0] == single.choices[0].message.content
    assert len(set(texts)) == 3
    assert answer.usage.prompt_tokens == single.usage.prompt_tokens
    assert 0 < answer.usage.prompt_tokens_details.cached_tokens <= answer.usage.prompt_tokens

    own = answer.usage.model_extra["dflash"]
    ids = [choice["generation_id"] for choice in own["choices"]]
    assert Decimal(own["cost"]) == sum(Decimal(choice["cost"]) for choice in own["choices"])
    with gateway.client(tenant.key) as client:
        views = [client.get(f"/generations/{name}").json() for name in ids]
    assert [view["output"] for view in views] == texts
    assert [view["usage"]["input_tokens"] > 0 for view in views] == [True, False, False]
    assert sum(view["usage"]["output_tokens"] for view in views) == answer.usage.completion_tokens
    assert [view["receipt"]["receipt"]["parameters"]["choice"] for view in views] == [0, 1, 2]

    again = sdk.chat.completions.create(**several)
    assert again.model_dump() == answer.model_dump(), "replayed, not generated again"
    streamed = dict.fromkeys(range(3), "")
    for part in sdk.chat.completions.create(**arguments, n=3, stream=True):
        for choice in part.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert list(streamed.values()) == texts


def test_choices_are_admitted_together_or_not_at_all(
    sdk: openai.OpenAI, model: str, gateway: Gateway, tenant: Tenant
) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        sdk.completions.create(
            model=model, prompt="a", n=4, max_tokens=8, extra_body={"max_cost": "0.000000004"}
        )
    assert (refused.value.status_code, refused.value.code) == (400, "cost_ceiling_too_low")
    with gateway.client(tenant.key) as client:
        assert Decimal(client.get("/balance").json()["held"]) == 0


def test_log_probabilities_are_the_raw_verifiers_whatever_bends_the_draw(
    sdk: openai.OpenAI, model: str
) -> None:
    arguments = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 8,
        "logprobs": True,
        "top_logprobs": 4,
        "temperature": 0,
    }
    plain = sdk.chat.completions.create(**arguments).choices[0].logprobs.content
    assert all(entry.top_logprobs[0].bytes == entry.bytes for entry in plain), "greedy is the top"
    assert all(entry.top_logprobs[0].logprob == entry.logprob <= 0 for entry in plain)
    likeliest = plain[0].top_logprobs
    assert sorted(likeliest, key=lambda other: -other.logprob) == likeliest

    answer = sdk.chat.completions.create(
        **arguments, frequency_penalty=1.5, extra_body={"repetition_penalty": 1.5}
    )
    bent = answer.choices[0].logprobs.content
    assert bent[0].top_logprobs == likeliest, "the first row is the same, before any penalty"
    parts = sdk.chat.completions.create(
        **arguments,
        stream=True,
        frequency_penalty=1.5,
        extra_body={"repetition_penalty": 1.5},
    )
    streamed = [
        entry
        for part in parts
        if part.choices and part.choices[0].logprobs
        for entry in part.choices[0].logprobs.content
    ]
    assert streamed == bent


def test_the_older_endpoints_log_probabilities_are_parallel_lists(
    sdk: openai.OpenAI, model: str
) -> None:
    answer = sdk.completions.create(
        model=model, prompt="the and", max_tokens=8, logprobs=2, temperature=0
    )
    text, found = answer.choices[0].text, answer.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs)
    assert found.text_offset[0] == 0
    for token, value, likely in zip(
        found.tokens, found.token_logprobs, found.top_logprobs, strict=True
    ):
        assert likely[token] == value == max(likely.values())
    assert "".join(found.tokens)[: len(text)]


def test_a_bias_bans_a_token_or_makes_it_the_only_one(sdk: openai.OpenAI, model: str) -> None:
    wanted = 3 + ord("z")  # the tiny vocabulary: three control tokens, then all bytes
    answer = sdk.completions.create(
        model=model, prompt="the", max_tokens=5, temperature=0, logit_bias={str(wanted): 100}
    )
    assert answer.choices[0].text == "zzzzz"


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_under_a_schema_satisfies_it_and_forced_tokens_are_apart(
    sdk: openai.OpenAI, model: str, temperature: float
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "the": {"enum": ["and", "on"]},
            "n": {"type": "integer", "minimum": 0, "maximum": 99},
        },
        "required": ["the", "n"],
        "additionalProperties": False,
    }
    arguments = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_completion_tokens": 64,
        "temperature": temperature,
        "seed": 3,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema, "strict": True},
        },
    }
    answer = sdk.chat.completions.create(**arguments)
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), schema)
    undrafted = sdk.chat.completions.create(**arguments, extra_body={"draft": False})
    assert undrafted.choices[0].message.content == answer.choices[0].message.content
    own = answer.usage.model_extra["dflash"]
    assert 0 < own["forced_tokens"] < answer.usage.completion_tokens
    assert own["confidence"]["tokens"] == answer.usage.completion_tokens - own["forced_tokens"]


def test_any_json_object_can_be_asked_for(sdk: openai.OpenAI, model: str) -> None:
    answer = sdk.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=200,
        seed=5,
        response_format={"type": "json_object"},
    )
    text = answer.choices[0].message.content
    assert text.startswith("{")
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize(
    "option",
    [
        {"n": 0},
        {"n": 17},
        {"frequency_penalty": 2.5},
        {"logit_bias": {"the": 3}},
        {"top_logprobs": 3},
        {"messages": [{"role": "user", "content": "x", "name": "ann"}]},
        {"top_logprobs": 21, "logprobs": True},
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_object", "json_schema": {"name": "a", "schema": {}}}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "wizard"}},
            }
        },
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"parallel_tool_calls": True},
        {"stream_options": {"include_usage": True}},
        {"user": "a\x00"},
        {"metadata": {"a": "\x00"}},
        {"metadata": {str(number): "a" for number in range(17)}},
    ],
)
def test_an_option_we_cannot_honour_is_refused_by_name(
    sdk: openai.OpenAI, model: str, option: dict
) -> None:
    said = {"model": model, "messages": [{"role": "user", "content": "x"}], **option}
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.chat.completions.create(**said)
    assert re.split(r"[.\[]", refused.value.param)[0] in option
    assert refused.value.body["type"] == "invalid_request_error"


def test_errors_have_the_sdks_classes(sdk: openai.OpenAI, model: str, gateway: Gateway) -> None:
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
    stranger = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="no", max_retries=0)
    with pytest.raises(openai.AuthenticationError), stranger:
        stranger.models.list()
