"""The wire of `/v1`, in OpenAI's shape. Every parameter its SDK may send is named here, so that
one we can't honour is refused by name and a misspelt one as unknown.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.inference.schemas import (
    Energy,
    JsonSchema,
    LogitBias,
    MaxJoules,
    OccurrencePenalty,
    RepetitionPenalty,
    TopLogprobs,
)
from api.schemas import Amount
from engine.errors import InvalidRequest
from metering.requests import CHOICES_MAX

TEXT_LOGPROBS_MAX = 5  # as OpenAI documents for the older endpoint


class TextPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A text part of a message's content."""

    text: str
    type: Literal["text"]


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn; `developer` is read as `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """The turn as the chat template takes it."""
        text = (
            self.content
            if isinstance(self.content, str)
            else "".join(part.text for part in self.content)
        )
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream carries besides text."""

    include_usage: bool = False
    include_obfuscation: bool | None = None


class NamedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema. It is followed to the letter, whatever `strict` says."""

    name: str
    schema: JsonSchema
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of the answer: text, any JSON object, or what a schema describes."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    def document(self) -> dict[str, Any] | None:
        """The schema that the answer must satisfy; null for text."""
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise InvalidRequest(
                "json_schema is given with type json_schema, and only then", "response_format"
            )
        if self.type == "json_object":
            return {"type": "object"}
        return self.json_schema.schema if self.json_schema else None


class CompletionParameters(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What both endpoints take."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: RepetitionPenalty | None = None
    frequency_penalty: OccurrencePenalty | None = None
    presence_penalty: OccurrencePenalty | None = None
    logit_bias: LogitBias | None = None
    draft: bool | None = None
    max_cost: Amount | None = None
    energy: Energy | None = None
    max_joules: MaxJoules | None = None
    n: Annotated[int, Meta(ge=1, le=CHOICES_MAX)] | None = None

    def refused(self) -> dict[str, Any]:
        """Options given with other than their neutral value."""
        return {
            "stream_options without stream": None if self.stream else self.stream_options,
        }


class ChatCompletionRequest(CompletionParameters, frozen=True, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    response_format: ResponseFormat | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    reasoning_effort: str | None = None
    service_tier: str | None = None
    verbosity: str | None = None
    web_search_options: Any = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    def refused(self) -> dict[str, Any]:
        """Options given with other than their neutral value."""
        return {
            **CompletionParameters.refused(self),
            "messages[].name": next((turn.name for turn in self.messages if turn.name), None),
            "store": self.store or None,
            "top_logprobs without logprobs": None if self.logprobs else self.top_logprobs,
            "tools": self.tools or None,
            "tool_choice": None if self.tool_choice in (None, "none", "auto") else True,
            "parallel_tool_calls": self.parallel_tool_calls,
            "functions": self.functions or None,
            "function_call": self.function_call,
            "modalities": None if self.modalities in (None, ["text"]) else True,
            "audio": self.audio,
            "prediction": self.prediction,
            "reasoning_effort": self.reasoning_effort,
            "service_tier": None if self.service_tier in (None, "auto", "default") else True,
            "verbosity": self.verbosity,
            "web_search_options": self.web_search_options,
        }


class CompletionRequest(CompletionParameters, frozen=True, kw_only=True):
    """`POST /v1/completions`."""

    prompt: str | list[Any]
    logprobs: Annotated[int, Meta(ge=0, le=TEXT_LOGPROBS_MAX)] | None = None
    best_of: int | None = None
    echo: bool = False
    suffix: str | None = None

    def refused(self) -> dict[str, Any]:
        """Options given with other than their neutral value."""
        return {
            **CompletionParameters.refused(self),
            "best_of": self.best_of if self.best_of != 1 else None,
            "echo": self.echo or None,
            "suffix": self.suffix or None,
        }
