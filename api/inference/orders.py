"""What a client asks for, validated against the model that will serve it.

Everything that can be refused for its own sake is refused here, before a hold is placed: an
option we can't honour is an error, never ignored.
"""

from __future__ import annotations

import json
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

import msgspec

from api.inference.turns import Turns
from api.schemas import LINE
from engine.errors import InvalidRequest, ModelNotFound, PromptTooLong
from engine.grammar.grammars import Grammars
from engine.requests import SamplingParams
from engine.scheduler.admission import check_sampling
from engine.tokenizer import Tokenizer
from metering.energy.provenance import shown_uj
from metering.request_parameters import MAX_ENERGY, PLACEMENT

STOP_STRINGS_MAX = 4
STOP_BYTES_MAX = 256
TAGS_MAX = 16
LABEL_CHARS_MAX = 200
_LINE = re.compile(LINE)
TEMPERATURE_MAX = 2
SEED_MAX = 2**53 - 1  # what every JSON reader keeps exactly
DEADLINE_MS_MAX = 3_600_000
JOULES = re.compile(r"[0-9]{1,9}(\.[0-9])?")  # finer than what is shown would tell of others


@dataclass(frozen=True, slots=True)
class Order:
    """A request that can be served, were there credit for it."""

    route: str
    model: str
    prompt: Any  # as sent, for the record
    input_ids: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    draft: bool
    max_cost_nano: int | None
    deadline_ms: int | None
    end_user: str | None
    tags: dict[str, str] | None
    draft_scope: str = "tenant"
    top_logprobs: int | None = None  # null: no log-probabilities are shown
    json_schema: str | None = None  # JSON text
    choices: int = 1  # answers to the one prompt
    energy: Literal["green"] | None = None
    placement: Mapping[str, Any] | None = None  # once placed for its energy: why where, as JSON
    max_energy_uj: int | None = None  # it ends once it has been shown to take as much

    @property
    def parameters(self) -> dict[str, Any]:
        """What a replay needs besides the prompt, as plain JSON."""
        return {
            **msgspec.to_builtins(self.sampling),
            "logit_bias": {str(token): bias for token, bias in self.sampling.logit_bias},
            "max_tokens": self.max_tokens,
            "stop": list(self.stop),
            "draft": self.draft,
            "draft_scope": self.draft_scope,
            "deadline_ms": self.deadline_ms,
            "top_logprobs": self.top_logprobs,
            "json_schema": None if self.json_schema is None else json.loads(self.json_schema),
            "n": self.choices,
            **({} if self.placement is None else {PLACEMENT: self.placement}),
            **({} if self.max_energy_uj is None else {MAX_ENERGY: self.share_of_energy_uj}),
        }

    @property
    def share_of_energy_uj(self) -> int | None:
        """What each choice may take: an even part of the order's limit, floored as it is shown."""
        return shown_uj(None if self.max_energy_uj is None else self.max_energy_uj // self.choices)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model this gateway serves, as far as orders need to know it."""

    name: str
    tokenizer: Tokenizer
    context_length: int
    max_tokens_default: int
    grammars: Grammars
    turns: Turns = field(default_factory=Turns)

    def check_name(self, asked: str | None) -> str:
        """The name served; raises ModelNotFound for another. Null means whatever is served."""
        if asked is not None and asked != self.name:
            raise ModelNotFound(
                f"model {asked!r} is not served here; this gateway serves {self.name}"
            )
        return self.name


def encode_prompt(
    served: ServedModel, prompt: str | None, messages: Sequence[Mapping[str, str]] | None
) -> tuple[Any, tuple[int, ...]]:
    """The prompt for the record and its tokens; exactly one of the two forms must be given."""
    if (prompt is None) == (messages is None):
        raise InvalidRequest("give exactly one of prompt and messages", "prompt")
    if messages is not None:
        if not messages:
            raise InvalidRequest("messages is empty", "messages")
        ids = served.tokenizer.encode_chat(messages)
        return {"messages": [dict(message) for message in messages]}, tuple(ids)
    assert prompt is not None
    ids = served.tokenizer.encode(prompt)
    if not ids:
        raise InvalidRequest("prompt is empty", "prompt")
    return {"prompt": prompt}, tuple(ids)


def token_limit(
    served: ServedModel, input_tokens: int, asked: int | None, parameter: str = "max_tokens"
) -> int:
    """The output limit; raises when it can't fit the context, and only shrinks the default."""
    room = served.context_length - input_tokens
    if room < 1:
        raise PromptTooLong(
            f"the prompt has {input_tokens} tokens; the context holds {served.context_length}, "
            "of which at least one must be left for the answer",
            "prompt",
        )
    if asked is None:
        return min(served.max_tokens_default, room)
    if asked < 1:
        raise InvalidRequest(f"{parameter} must be at least 1", parameter)
    if asked > room:
        raise PromptTooLong(
            f"{parameter} is {asked}, but the context of {served.context_length} tokens leaves "
            f"{room} after a prompt of {input_tokens}",
            parameter,
        )
    return asked


def sampling_params(
    served: ServedModel,
    *,
    temperature: float,
    seed: int | None,
    logit_bias: Mapping[int, float] | None,
    **others: Any,
) -> SamplingParams:
    """Validated sampling parameters; a missing seed is drawn here, so that it can be recorded.

    `others` are passed on by name, those that are null left at their neutral value.
    """
    if not (math.isfinite(temperature) and 0 <= temperature <= TEMPERATURE_MAX):
        raise InvalidRequest(
            f"temperature must be a number from 0 to {TEMPERATURE_MAX}", "temperature"
        )
    if seed is None:
        seed = secrets.randbelow(SEED_MAX + 1)
    elif not 0 <= seed <= SEED_MAX:
        raise InvalidRequest(f"seed must be from 0 to {SEED_MAX}", "seed")
    params = SamplingParams(
        temperature=temperature,
        seed=seed,
        logit_bias=tuple(sorted((logit_bias or {}).items())),
        **{name: value for name, value in others.items() if value is not None},
    )
    check_sampling(params, served.tokenizer.vocab_size)
    return params


def schema(served: ServedModel, document: Any, parameter: str) -> str | None:
    """The text of a JSON schema that can be followed; null where none was given.

    Raises InvalidRequest with the reason.
    """
    if document is None:
        return None
    text = msgspec.json.encode(document).decode()
    try:
        served.grammars.open(text)
    except InvalidRequest as error:
        raise InvalidRequest(str(error), parameter) from None
    return text


def stop_strings(stop: str | Sequence[str] | None) -> tuple[str, ...]:
    """Validated stop strings, in the order given."""
    strings = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    if len(strings) > STOP_STRINGS_MAX:
        raise InvalidRequest(f"at most {STOP_STRINGS_MAX} stop strings", "stop")
    for string in strings:
        if not 0 < len(string.encode()) <= STOP_BYTES_MAX:
            raise InvalidRequest(f"a stop string has 1 to {STOP_BYTES_MAX} bytes", "stop")
    return strings


def labels(
    end_user: str | None,
    tags: Mapping[str, str] | None,
    named: tuple[str, str] = ("end_user", "tags"),
) -> tuple[str | None, dict[str, str] | None]:
    """Validated attribution labels, which travel through to exports; `named` as a route does."""
    user_field, tags_field = named
    if end_user is not None and not (end_user and _is_label(end_user)):
        raise InvalidRequest(
            f"{user_field} has 1 to {LABEL_CHARS_MAX} characters, none of control or direction",
            user_field,
        )
    for key, value in (tags or {}).items():
        if not (key and _is_label(key) and _is_label(value)):
            raise InvalidRequest(
                f"in {tags_field}, a text has at most {LABEL_CHARS_MAX} characters, "
                "none of control or direction",
                tags_field,
            )
    if tags is not None and len(tags) > TAGS_MAX:
        raise InvalidRequest(f"{tags_field} has at most {TAGS_MAX} entries", tags_field)
    return end_user, dict(tags) if tags is not None else None


def _is_label(text: str) -> bool:
    return len(text) <= LABEL_CHARS_MAX and _LINE.match(text) is not None


def deadline(deadline_ms: int | None) -> int | None:
    """A validated deadline, in milliseconds from admission."""
    if deadline_ms is not None and not 1 <= deadline_ms <= DEADLINE_MS_MAX:
        raise InvalidRequest(f"deadline_ms must be from 1 to {DEADLINE_MS_MAX}", "deadline_ms")
    return deadline_ms


def energy_limit(max_joules: str | None, choices: int = 1) -> int | None:
    """A validated `max_joules` in microjoules; each choice must get a tenth of a joule at least."""
    if max_joules is None:
        return None
    if not JOULES.fullmatch(max_joules) or Decimal(max_joules) * 10 < choices:
        raise InvalidRequest(
            "max_joules is a decimal string in tenths of a joule, at least 0.1 for each choice",
            "max_joules",
        )
    return int(Decimal(max_joules) * 10**6)


def refuse_unsupported(options: Mapping[str, Any]) -> None:
    """Raise for the first option that was given and can't be honoured; null means not given.

    A name may say in further words when it is refused: `top_logprobs without logprobs`.
    """
    for name, value in options.items():
        if value is not None:
            raise InvalidRequest(f"{name} is not supported by this gateway", name.split()[0])
