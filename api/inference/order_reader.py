"""The order that a body of `/generate` states, also where it is only to be priced."""

from __future__ import annotations

from typing import Any

import msgspec

from api.inference import orders
from api.inference.orders import Order, ServedModel
from api.inference.schemas import GenerateRequest
from billing.money import parse_nano


def read(served: ServedModel, wire: GenerateRequest) -> Order:
    """The order that a body states; raises InvalidRequest naming what can't be honoured."""
    messages = None if wire.messages is None else msgspec.to_builtins(wire.messages)
    prompt, input_ids = orders.encode_prompt(served, wire.prompt, messages)
    return with_input(served, wire, prompt, input_ids, len(input_ids))


def with_input(
    served: ServedModel,
    wire: GenerateRequest,
    prompt: Any,
    input_ids: tuple[int, ...],
    input_tokens: int,
) -> Order:
    """The order that a body states besides its prompt, which has so many tokens.

    Raises InvalidRequest naming what can't be honoured.
    """
    end_user, tags = orders.labels(wire.end_user, wire.tags)
    return Order(
        route="generate",
        model=served.check_name(wire.model),
        prompt=prompt,
        input_ids=input_ids,
        max_tokens=orders.token_limit(served, input_tokens, wire.max_tokens),
        sampling=orders.sampling_params(
            served,
            temperature=wire.temperature,
            top_k=wire.top_k,
            top_p=wire.top_p,
            min_p=wire.min_p,
            seed=wire.seed,
            repetition_penalty=wire.repetition_penalty,
            frequency_penalty=wire.frequency_penalty,
            presence_penalty=wire.presence_penalty,
            logit_bias=wire.logit_bias,
        ),
        stop=orders.stop_strings(wire.stop),
        draft=wire.draft,
        draft_scope=wire.draft_scope,
        max_cost_nano=parse_nano(wire.max_cost) if wire.max_cost is not None else None,
        deadline_ms=orders.deadline(wire.deadline_ms),
        end_user=end_user,
        tags=tags,
        top_logprobs=wire.top_logprobs,
        json_schema=orders.schema(served, wire.json_schema, "json_schema"),
        energy=wire.energy,
        max_energy_uj=orders.energy_limit(wire.max_joules),
    )
