"""What the engine did, as plain facts: the only thing the meter ever learns of a decode step.

Text is bytes, because a token may end in the middle of a code point. Times are nanoseconds of
CLOCK_MONOTONIC, which all processes of one machine share. Log-probabilities are natural and raw:
the verifier's own, before temperature, penalties and masks.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class FinishReason(StrEnum):
    """Why a request's generation ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    BUDGET = "budget"
    DEADLINE = "deadline"
    ERROR = "error"


class Work(msgspec.Struct, frozen=True, gc=False):
    """What one step computed for one request, whether or not it emitted anything."""

    prefill_tokens: int = 0  # prompt rows computed for the first time
    recomputed_tokens: int = 0  # rows computed again after a preemption: the operator's cost
    verified_nodes: int = 0  # tree nodes scored, the root among them
    kv_read_tokens: int = 0  # keys read, summed over rows but those computed again
    recomputed_kv_tokens: int = 0  # keys read by rows computed again


class RequestWork(msgspec.Struct, frozen=True):
    """The work of one request within one step, or of several that must get the same tokens.

    It was done once. `shared_with` are the requests that rode along: what it cost is theirs in
    equal parts.
    """

    request_id: str
    work: Work
    shared_with: tuple[str, ...] = ()


class Alternative(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token that could have been drawn, and how likely the raw verifier thought it."""

    token_id: int
    piece: bytes  # what it would have appended
    logprob: float  # nats


class BlockRecord(msgspec.Struct, frozen=True):
    """What one step emitted for one request.

    `token_ids`, `pieces`, `logprobs` and `entropies` are parallel. `pieces` are the bytes that
    each token appends to the output (empty for EOS; cut where a stop string begins).
    """

    request_id: str
    block_index: int  # 0, 1, 2, ... without gaps; survives preemption
    token_ids: tuple[int, ...]
    pieces: tuple[bytes, ...]
    logprobs: tuple[float, ...]  # nats
    entropies: tuple[float, ...]  # nats, of the raw distribution each token was drawn from
    drafted_nodes: int = 0  # nodes proposed, the root not counted, depth clipped at the end
    drafted_depth: int = 0  # depth of the best drafted path
    verified_nodes: int = 0  # nodes scored, the root among them
    accepted_tokens: int = 0  # drafted tokens that the verifier drew itself
    cached_tokens: int = 0  # accepted tokens that came from the shared draft cache
    anchor: int | None = None  # index into the block of its lowest-entropy accepted token
    cached_prompt_tokens: int = 0  # of the first block: prompt tokens not computed for the request
    forced: tuple[int, ...] = ()  # indexes of tokens to which the grammar left no alternative
    # Beside each token the likeliest, likeliest first; empty where nobody asked.
    alternatives: tuple[tuple[Alternative, ...], ...] = ()

    @property
    def followed(self) -> bool:
        """Whether another request's work drew it: no node was scored for this one."""
        return self.verified_nodes == 0


class FinishRecord(msgspec.Struct, frozen=True):
    """The last thing the engine says of a request."""

    request_id: str
    reason: FinishReason
    block_count: int
    token_count: int
    detail: str | None = None  # for ERROR: what went wrong, safe to show


class StepRecord(msgspec.Struct, frozen=True):
    """One engine step: a window of time, the work done in it, and what came out of it."""

    engine_epoch: str  # changes when the engine process is replaced
    step_index: int
    start_ns: int
    end_ns: int
    work: tuple[RequestWork, ...] = ()
    blocks: tuple[BlockRecord, ...] = ()
    finishes: tuple[FinishRecord, ...] = ()


class DraftCounters(msgspec.Struct, frozen=True):
    """Drafting totals, of a request or of a whole model. All are counts; rates derive from them."""

    steps: int = 0
    emitted_tokens: int = 0
    drafted_nodes: int = 0
    drafted_depth: int = 0
    verified_nodes: int = 0
    accepted_tokens: int = 0
    cached_tokens: int = 0

    @property
    def draft_hit_rate(self) -> float | None:
        """Accepted tokens per drafted depth; null when nothing was drafted."""
        return self.accepted_tokens / self.drafted_depth if self.drafted_depth else None

    @property
    def mean_drafted_depth(self) -> float | None:
        """Depth drafted per step, without which a hit rate says little: one ahead is easy."""
        return self.drafted_depth / self.steps if self.steps else None

    @property
    def node_efficiency(self) -> float | None:
        """Accepted tokens per verified node; null before the first."""
        return self.accepted_tokens / self.verified_nodes if self.verified_nodes else None

    @property
    def mean_accepted_length(self) -> float | None:
        """Tokens emitted per step; null before the first step."""
        return self.emitted_tokens / self.steps if self.steps else None


class ExpertCounters(msgspec.Struct, frozen=True):
    """What was found prepared of a mixture's experts, since the engine started. All are counts."""

    kept: int = 0  # at hand at this moment, of all layers together
    lookups: int = 0  # experts used, each once for a layer's step
    hits: int = 0  # of these, found at hand
    evictions: int = 0

    @property
    def hit_ratio(self) -> float | None:
        """Hits per lookup; null before the first."""
        return self.hits / self.lookups if self.lookups else None

    def since(self, earlier: ExpertCounters) -> ExpertCounters:
        """Return what was counted after an earlier state."""
        return ExpertCounters(
            self.kept,
            self.lookups - earlier.lookups,
            self.hits - earlier.hits,
            self.evictions - earlier.evictions,
        )


class CacheCounters(msgspec.Struct, frozen=True):
    """What was reused rather than computed, since the engine started. All are counts."""

    blocks: int = 0
    cached_blocks: int = 0  # with an accepted token from the shared draft cache
    followed_blocks: int = 0  # drawn by the work of another request that must get the same tokens
    prompt_tokens: int = 0  # of requests that began to emit
    cached_prompt_tokens: int = 0  # of these, not computed for the request
    page_evictions: int = 0
    draft_lookups: int = 0
    draft_hits: int = 0
    draft_evictions: int = 0  # documents
    experts: ExpertCounters | None = None  # null: the model has none

    @property
    def block_reuse_rate(self) -> float | None:
        """Blocks that came out of a cache or another's work, per block; null before the first."""
        return (self.cached_blocks + self.followed_blocks) / self.blocks if self.blocks else None

    @property
    def expert_cache_hit_ratio(self) -> float | None:
        """Experts found at hand per use; null where there are none, and before the first."""
        return self.experts.hit_ratio if self.experts else None


class EngineInfo(msgspec.Struct, frozen=True):
    """What runs the model: printed on every receipt."""

    model: str
    checksum: str  # "sha256:..." of the .dfm's tensors
    architecture: str
    vocab_size: int
    context_length: int
    backend: str  # "fp32"
    batch_invariant: bool
    device: str  # "cpu", "cuda:0"
    instruction_set: str
    thread_count: int
    pid: int  # the process whose CPU time is the engine's
    rope_scaling_factor: float = 1.0  # positions were multiplied by it
    device_uuid: str | None = None  # of a GPU, as CUDA says it; null where it says none


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot of the running engine."""

    running: int
    waiting: int
    draft_enabled: bool  # configured, and not turned off by itself
    counters: DraftCounters
    pages_free: int
    pages_used: int
    pages_cached: int
    draft_cache_tokens: int
    emitted_tokens_per_s: float | None  # over the last window; null when nothing was decoded
    following: int = 0  # requests that ride along with another, in neither of the first two
    caches: CacheCounters = CacheCounters()
    draft_state: str = "on"  # "off" when drafting turned itself off, "probing" when it tries again
    draft_alert: bool = False  # the last window's hit rate was below 0.70
    window_hit_rate: float | None = None  # of the last full window of drafts
    window_speedup: float | None = None  # over plain decoding by its profiled cost, same window
    step_cost_ms: tuple[tuple[int, float], ...] = ()  # v(n) as profiled at start, if it was
