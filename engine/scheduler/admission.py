"""What can never run is refused before it waits."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine.config import (
    DEGRADE_POLICIES,
    FLASH_ATTENTION_PLACES,
    ROLLBACK_POLICIES,
    EngineConfig,
)
from engine.errors import InvalidConfig, InvalidRequest, PromptTooLong
from engine.grammar.grammars import Grammars, GrammarState
from engine.requests import DRAFT_SCOPES, GenerationRequest, SamplingParams

TOP_K_MAX = 2**31 - 1
TOP_LOGPROBS_MAX = 20
REPETITION_PENALTY_MIN, REPETITION_PENALTY_MAX = 0.1, 10.0
PENALTY_MAX = 2.0  # frequency and presence, either sign
LOGIT_BIAS_MAX = 100.0  # either sign
BIASED_TOKENS_MAX = 300


@dataclass(frozen=True, slots=True)
class Limits:
    """What the model and its storage can hold."""

    vocab_size: int
    context_length: int
    kv_tokens: int
    grammars: Grammars | None = None  # null: no schema can be followed

    def check(self, request: GenerationRequest) -> None:
        """Raise InvalidRequest, or PromptTooLong, if the request can never run to its end."""
        if not request.prompt_ids:
            raise InvalidRequest("the prompt has no tokens", "prompt")
        if not all(0 <= token < self.vocab_size for token in request.prompt_ids):
            raise InvalidRequest("the prompt has a token outside the vocabulary", "prompt")
        if request.max_tokens < 1:
            raise InvalidRequest("max_tokens must be at least 1", "max_tokens")
        length = len(request.prompt_ids) + request.max_tokens
        for limit, what in (
            (self.context_length, "the model's context"),
            (self.kv_tokens, "the engine's key-value storage"),
        ):
            if length > limit:
                raise PromptTooLong(
                    f"{len(request.prompt_ids)} prompt tokens and {request.max_tokens} new ones "
                    f"exceed {what} of {limit} tokens",
                    "max_tokens" if len(request.prompt_ids) < limit else "prompt",
                )
        if not all(request.stop):
            raise InvalidRequest("a stop string is empty", "stop")
        if request.draft_scope not in DRAFT_SCOPES:
            raise InvalidRequest(
                f"draft_scope must be one of {', '.join(DRAFT_SCOPES)}", "draft_scope"
            )
        if not 0 <= request.top_logprobs <= min(TOP_LOGPROBS_MAX, self.vocab_size):
            raise InvalidRequest(
                f"top_logprobs must be from 0 to {TOP_LOGPROBS_MAX}", "top_logprobs"
            )
        check_sampling(request.sampling, self.vocab_size)
        if request.json_schema is not None:
            if request.ignore_eos:
                raise InvalidRequest("a schema ends the text; ignore_eos can't", "ignore_eos")
            self.grammar(request.json_schema)

    def grammar(self, schema: str) -> GrammarState:
        """Return the beginning of a schema's grammar. Raises InvalidRequest if there is none."""
        if self.grammars is None:
            raise InvalidRequest("this engine follows no schemas", "json_schema")
        return self.grammars.open(schema)


def check_sampling(params: SamplingParams, vocab_size: int | None = None) -> None:
    """Raise InvalidRequest for parameters that define no distribution; NaN is one of them."""
    if not (math.isfinite(params.temperature) and params.temperature >= 0.0):
        raise InvalidRequest("temperature must be a finite number, 0 or more", "temperature")
    if 0.0 < params.temperature < 1e-6:  # its inverse must stay far from float32's range
        raise InvalidRequest("temperature must be 0, or at least 0.000001", "temperature")
    if params.top_k is not None and not 1 <= params.top_k <= TOP_K_MAX:
        raise InvalidRequest(f"top_k must be from 1 to {TOP_K_MAX}, or absent", "top_k")
    if not 0.0 < params.top_p <= 1.0:
        raise InvalidRequest("top_p must lie in (0, 1]", "top_p")
    if not 0.0 <= params.min_p <= 1.0:
        raise InvalidRequest("min_p must lie in [0, 1]", "min_p")
    if not REPETITION_PENALTY_MIN <= params.repetition_penalty <= REPETITION_PENALTY_MAX:
        raise InvalidRequest(
            f"repetition_penalty must be from {REPETITION_PENALTY_MIN} to {REPETITION_PENALTY_MAX}",
            "repetition_penalty",
        )
    for name in ("frequency_penalty", "presence_penalty"):
        if not -PENALTY_MAX <= getattr(params, name) <= PENALTY_MAX:
            raise InvalidRequest(f"{name} must be from -{PENALTY_MAX} to {PENALTY_MAX}", name)
    _check_biases(params.logit_bias, vocab_size)


def _check_biases(biases: tuple[tuple[int, float], ...], vocab_size: int | None) -> None:
    if len(biases) > BIASED_TOKENS_MAX:
        raise InvalidRequest(f"logit_bias has at most {BIASED_TOKENS_MAX} tokens", "logit_bias")
    if len({token for token, _ in biases}) < len(biases):
        raise InvalidRequest("logit_bias names a token twice", "logit_bias")
    limit = TOP_K_MAX if vocab_size is None else vocab_size
    if unknown := [token for token, _ in biases if not 0 <= token < limit]:
        raise InvalidRequest(f"logit_bias names token {unknown[0]}; there is none", "logit_bias")
    if not all(-LOGIT_BIAS_MAX <= bias <= LOGIT_BIAS_MAX for _, bias in biases):
        raise InvalidRequest(
            f"a logit_bias must be from -{LOGIT_BIAS_MAX} to {LOGIT_BIAS_MAX}", "logit_bias"
        )


def check_config(config: EngineConfig, context_length: int, *, experts: bool = False) -> None:
    """Raise InvalidConfig for parameters that no engine, or no engine of this model, can run.

    `experts` says that it has some.
    """
    for name in (
        "draft_block_size",
        "verifier_batch_size",
        "node_budget",
        "tree_width",
        "max_running",
        "max_step_rows",
        "prefill_chunk",
        "kv_tokens",
    ):
        if getattr(config, name) < 1:
            raise InvalidConfig(f"{name} must be at least 1")
    if config.max_waiting < 0 or config.draft_cache_tokens < 0:
        raise InvalidConfig("max_waiting and draft_cache_tokens must not be negative")
    if not config.entropy_threshold >= 0.0:
        raise InvalidConfig("entropy_threshold must be a number of nats, 0 or more")
    for name, allowed in (
        ("rollback", ROLLBACK_POLICIES),
        ("degrade_policy", DEGRADE_POLICIES),
        ("use_flash_attn2", (None, *FLASH_ATTENTION_PLACES)),
    ):
        if getattr(config, name) not in allowed:
            raise InvalidConfig(f"{name} must be one of {', '.join(filter(None, allowed))}")
    if not (math.isfinite(config.rope_scaling_factor) and config.rope_scaling_factor > 0.0):
        raise InvalidConfig("rope_scaling_factor must be a finite number above 0")
    _check_for_model(config, experts)
    longest = config.longest_token_length
    if longest is not None and longest < context_length:
        raise InvalidConfig(
            f"longest_token_length must be at least {context_length}, the model's context"
        )


def _check_for_model(config: EngineConfig, experts: bool) -> None:
    """Refuse what this model, or any that this engine computes, can make no use of."""
    size = config.expert_cache_size or 0
    if size < 0:
        raise InvalidConfig("expert_cache_size must not be negative")
    if size > 0 and not experts:
        raise InvalidConfig(
            "expert_cache_size has no effect on this model: it is dense, there are no experts to"
            " keep; leave it out"
        )
    if config.use_flash_attn2 == "draft":
        raise InvalidConfig(
            "the draft layer never uses flash attention: it attends with an arbitrary mask over a"
            " few slots, which flash attention cannot take and which plain attention does faster"
        )
    if config.use_flash_attn2 is not None:
        why = (
            "it is a CUDA kernel, and this engine computes on the CPU"
            if config.device == "cpu"
            else "it takes half precision, and this engine computes in single precision there"
        )
        raise InvalidConfig(f"the verifier cannot use flash attention here: {why}")
