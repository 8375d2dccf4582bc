"""The wire of `/generate` and `/generations`. Amounts, scores and joules are decimal strings."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from api.schemas import Amount


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


class GenerateRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A prompt or a conversation to continue, and under which conditions."""

    prompt: str | None = None
    messages: list[Message] | None = None
    model: str | None = None
    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    draft: bool = True
    draft_scope: Literal["tenant", "public"] = "tenant"
    max_cost: Amount | None = None
    deadline_ms: int | None = None
    end_user: str | None = None
    tags: dict[str, str] | None = None
    max_joules: str | None = None
    energy: str | None = None


class UsageView(msgspec.Struct, frozen=True):
    """Quantities of one request. `joules` is null when energy was unavailable."""

    input_tokens: int
    cached_input_tokens: int  # of the input, found computed
    output_tokens: int
    complete_units: int
    fragment_units: int
    information_bits: str | None
    joules: str | None
    energy_class: str


class ConfidenceView(msgspec.Struct, frozen=True):
    """Joint-probability confidence of the output under the raw verifier."""

    geo_mean: str
    min_prob: str
    sum_logprob: str
    calibrated: str | None
    basis: str
    tier: str


class DraftingView(msgspec.Struct, frozen=True):
    """How drafting went. Rates are null where nothing was drafted."""

    steps: int
    drafted_nodes: int
    verified_nodes: int
    accepted_tokens: int
    draft_hit_rate: str | None
    mean_accepted_length: str | None


class GenerationView(msgspec.Struct, frozen=True):
    """A request as it stands. Reading it never bills."""

    id: str
    object: Literal["generation"]
    model: str
    status: str
    finish_reason: str | None
    output: str | None
    usage: UsageView | None
    confidence: ConfidenceView | None
    drafting: DraftingView | None
    cost: str | None
    currency: str | None
    receipt: dict[str, Any] | None
    adjustments: list[dict[str, Any]]
    seed: int
    created_at: str
    ended_at: str | None


class BlockView(msgspec.Struct, frozen=True):
    """One committed block of a stream.

    Energy is on the receipt only: by block it would tell of what others do.
    """

    index: int
    text: str
    tokens: int
    joint_prob: str | None
    geo_mean: str | None
    units_closed: int
    accepted_tokens: int
    drafted_depth: int
