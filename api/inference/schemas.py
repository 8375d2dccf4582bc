"""The wire of `/generate` and `/generations`. Amounts, scores and joules are decimal strings."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from api.schemas import Amount
from engine.scheduler.admission import (
    BIASED_TOKENS_MAX,
    LOGIT_BIAS_MAX,
    PENALTY_MAX,
    REPETITION_PENALTY_MAX,
    REPETITION_PENALTY_MIN,
    TOP_LOGPROBS_MAX,
)
from metering.queries import BlockEnergy


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str


RepetitionPenalty: TypeAlias = Annotated[
    float,
    Meta(
        ge=REPETITION_PENALTY_MIN,
        le=REPETITION_PENALTY_MAX,
        description="As in transformers: divides the logit of a token that occurs in the prompt or "
        "the output if it is positive, multiplies it if it is negative; 1 changes nothing",
    ),
]
OccurrencePenalty: TypeAlias = Annotated[
    float,
    Meta(
        ge=-PENALTY_MAX,
        le=PENALTY_MAX,
        description="As OpenAI defines it; only the output counts, the prompt does not",
    ),
]
LogitBias: TypeAlias = Annotated[
    dict[int, Annotated[float, Meta(ge=-LOGIT_BIAS_MAX, le=LOGIT_BIAS_MAX)]],
    Meta(
        max_length=BIASED_TOKENS_MAX,
        description="Token ids of this model, and what is added to their logits",
        examples=[{"42": -100}],
    ),
]
JsonSchema: TypeAlias = Annotated[
    dict[str, Any],
    Meta(
        description="A JSON schema that the answer satisfies, if it ends by itself; "
        '`{"type": "object"}` is any object',
        examples=[{"type": "object", "properties": {"name": {"type": "string"}}}],
    ),
]
TopLogprobs: TypeAlias = Annotated[
    int,
    Meta(
        ge=0,
        le=TOP_LOGPROBS_MAX,
        description="Show each token's raw log-probability, and this many of the likeliest beside "
        "it: the model's own, before penalties, biases, schema and temperature",
    ),
]
MaxJoules: TypeAlias = Annotated[
    str,
    Meta(
        description="Decimal, in tenths of a joule. The answer ends, as for a budget, with the "
        "last block before it was known to have taken as much; what was under way then comes on top"
    ),
]
Energy: TypeAlias = Annotated[
    Literal["green"],
    Meta(
        description="`green`: run where a token takes the least energy, as measured on the "
        "gateway's replicas of the model. The receipt says what was chosen from, and the discount"
    ),
]


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
    repetition_penalty: RepetitionPenalty = 1.0
    frequency_penalty: OccurrencePenalty = 0.0
    presence_penalty: OccurrencePenalty = 0.0
    logit_bias: LogitBias | None = None
    json_schema: JsonSchema | None = None
    top_logprobs: TopLogprobs | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    draft: bool = True
    draft_scope: Literal["tenant", "public"] = "tenant"
    max_cost: Amount | None = None
    deadline_ms: int | None = None
    end_user: str | None = None
    tags: dict[str, str] | None = None
    max_joules: MaxJoules | None = None
    energy: Energy | None = None


class AlternativeView(msgspec.Struct, frozen=True):
    """A token that could have been drawn: its bytes, and its raw log-probability in nats."""

    bytes: list[int]
    logprob: str | None


class TokenView(msgspec.Struct, frozen=True):
    """A token of the output. A `forced` one was the only one that the schema allowed."""

    bytes: list[int]
    logprob: str | None
    forced: bool
    top: list[AlternativeView]


class UsageView(msgspec.Struct, frozen=True):
    """Quantities of one request. `joules` is null when energy was unavailable."""

    input_tokens: int
    cached_input_tokens: int  # of the input, found computed
    output_tokens: int
    forced_tokens: int
    complete_units: int
    fragment_units: int
    information_bits: str | None
    joules: str | None
    energy_class: str


class ConfidenceView(msgspec.Struct, frozen=True):
    """Joint-probability confidence of the tokens that the raw verifier chose, forced ones apart."""

    tokens: int
    geo_mean: str
    min_prob: str
    sum_logprob: str
    calibrated: str | None
    basis: str
    tier: str
    calibration: str | None  # the version that `calibrated` is of


class DraftingView(msgspec.Struct, frozen=True):
    """How drafting went. Rates are null where nothing was drafted."""

    steps: int
    drafted_nodes: int
    verified_nodes: int
    accepted_tokens: int
    draft_hit_rate: str | None
    mean_accepted_length: str | None


class ReviewView(msgspec.Struct, frozen=True):
    """What became of an answer's review. `withheld`: it is kept back until the verdict, or because
    of it; `corrected_output` is what a reviewer made of it.
    """

    item_id: str
    reason: str
    state: str  # "queued", "resolved" or "lapsed"
    delivery: str  # "now", or "held" until the verdict
    withheld: bool
    verdict: str | None
    reasons: list[str]
    corrected_output: str | None
    queued_at: str
    due_at: str
    resolved_at: str | None


class GenerationView(msgspec.Struct, frozen=True):
    """A request as it stands. Reading it never bills. `output` is null while it is withheld."""

    id: str
    object: Literal["generation"]
    model: str
    status: str
    finish_reason: str | None
    failure: str | None  # why it failed, if it did
    output: str | None
    usage: UsageView | None
    confidence: ConfidenceView | None
    drafting: DraftingView | None
    logprobs: list[TokenView] | None
    cost: str | None
    currency: str | None
    receipt: dict[str, Any] | None
    adjustments: list[dict[str, Any]]
    review: ReviewView | None
    seed: int | None  # null where another engine ran it
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
    logprobs: list[TokenView] | None  # null where they were not asked for


class TraceTokenView(msgspec.Struct, frozen=True):
    """How sure the raw verifier was where it drew a token, in nats; null: not finite."""

    logprob: str | None
    entropy: str | None
    forced: bool


class TraceBlockView(msgspec.Struct, frozen=True):
    """One step of a request: what it drafted, verified and accepted, and the block it emitted.

    `ended_us` counts from admission. `step_us` is how long the step took, with all requests that
    shared it; what was computed is this request's own. `anchor` is the index of the accepted token
    at which the verifier was surest. `energy` says whether the joules of the step are known yet.
    `text` is null while the request runs, and while its answer is withheld.
    """

    index: int
    ended_us: int
    step_us: int
    prefill_tokens: int  # prompt rows computed in this step
    recomputed_tokens: int  # rows computed again after a preemption
    drafted_nodes: int
    drafted_depth: int
    verified_nodes: int
    keys_read: int
    accepted_tokens: int
    cached_tokens: int
    anchor: int | None
    withheld_tokens: int
    energy: BlockEnergy
    text: str | None
    tokens: list[TraceTokenView]


class TraceView(msgspec.Struct, frozen=True):
    """How a request was answered, step by step. Times are microseconds since its admission.

    `blocks` is null once their detail was compacted.
    """

    id: str
    status: str
    finish_reason: str | None
    input_tokens: int
    cached_input_tokens: int | None  # of the input, found computed; null with `blocks`
    first_block_us: int | None
    ended_us: int | None
    blocks: list[TraceBlockView] | None
