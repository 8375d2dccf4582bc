"""OpenAI's own SDK against `/v1`: it streams, and reads usage and cost."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

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


def test_log_probabilities_are_the_raw_verifiers(sdk: openai.OpenAI, model: str) -> None:
    answer = sdk.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hello"}],
        max_completion_tokens=8,
        logprobs=True,
        seed=1,
    )
    entries = answer.choices[0].logprobs.content
    assert entries
    assert all(entry.logprob <= 0 for entry in entries)


@pytest.mark.parametrize(
    "option",
    [
        {"n": 2},
        {"frequency_penalty": 0.5},
        {"logit_bias": {"5": 3}},
        {"top_logprobs": 3, "logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"stream_options": {"include_usage": True}},
    ],
)
def test_an_option_we_cannot_honour_is_refused_by_name(
    sdk: openai.OpenAI, model: str, option: dict
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "x"}], **option
        )
    assert refused.value.param in option
    assert refused.value.body["type"] == "invalid_request_error"


def test_errors_have_the_sdks_classes(sdk: openai.OpenAI, model: str, gateway: Gateway) -> None:
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="other", messages=[{"role": "user", "content": "x"}])
    stranger = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="no", max_retries=0)
    with pytest.raises(openai.AuthenticationError), stranger:
        stranger.models.list()
