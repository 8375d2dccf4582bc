"""What each kind of usage event states, and how a step's record becomes such a statement.

Log-probabilities become integer micronats here, once: everything priced is folded from these
bodies, so the live meter and a restart that reads them back cannot disagree.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from engine.records import Alternative, BlockRecord, StepRecord, Work
from metering import canonical_json, information
from metering.events import EndedBy, EnergyClass, EventKind, RequestStatus

SOURCE = "/dflash/engine"  # of every event that our own engine causes; a CloudEvents source

# A natural log-probability above this is no rounding error of a softmax, so it is no score.
LOGPROB_MAX = 1e-3


class Likely(msgspec.Struct, frozen=True, array_like=True):
    """A token that could have stood in another's place."""

    token_id: int
    piece: bytes  # base64 in JSON
    logprob_unats: int | None


class BlockBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens were emitted: the part of a block record that was committed.

    `token_ids`, `pieces`, `logprobs_unats` and `entropies_unats` are parallel, and so is
    `alternatives` unless it is empty; a log-probability that was not finite is null.
    """

    request_id: str
    block_index: int
    engine_epoch: str
    step_index: int
    start_ns: int  # CLOCK_MONOTONIC
    end_ns: int
    token_ids: tuple[int, ...]
    pieces: tuple[bytes, ...]  # base64 in JSON
    logprobs_unats: tuple[int | None, ...]
    entropies_unats: tuple[int | None, ...]
    information_ubits: int | None  # each token clipped at log2(vocabulary); null: a score misses
    drafted_nodes: int
    drafted_depth: int
    verified_nodes: int
    accepted_tokens: int
    cached_tokens: int
    anchor: int | None
    work: Work  # of the whole step, whatever was cut from the block
    withheld_tokens: int  # at the block's end, cut because the hold could not cover them
    cached_prompt_tokens: int = 0  # of the first block: prompt tokens not computed for the request
    forced: tuple[int, ...] = ()  # indexes of tokens to which a grammar left no alternative
    # The likeliest tokens beside each; empty unless the request asked for them.
    alternatives: tuple[tuple[Likely, ...], ...] = ()


class BlockRun(msgspec.Struct, frozen=True):
    """Consecutive blocks of one request that were committed together, one at least.

    They are one event: what an event takes by itself is as much as what a block states.
    """

    blocks: tuple[BlockBody, ...]


class EnergyBody(msgspec.Struct, frozen=True):
    """Energy of the request's steps up to and including block `through_block` has settled.

    `energy_uj` is what these steps add; null says that it can't be known, and makes the whole
    request's energy unavailable. -1 as `through_block`: only steps before the first block.
    """

    request_id: str
    index: int
    through_block: int
    energy_uj: int | None
    energy_class: EnergyClass
    source: str
    scope: str
    method: str
    uncertainty_pct: int | None
    device: str  # those of a group are joined by "+"
    epoch: str
    start_ns: int
    end_ns: int
    weights: str | None = None  # see `EnergySummary`
    update_period_us: int | None = None


class TerminalBody(msgspec.Struct, frozen=True):
    """The request is over; nothing follows."""

    request_id: str
    status: RequestStatus
    finish_reason: str
    ended_by: EndedBy
    blocks: int
    tokens: int
    output_sha256: str
    replaced_tail: bool  # an unfinished code point at the end is shown as U+FFFD, not dropped
    detail: str | None


Body = BlockRun | EnergyBody | TerminalBody  # of an event
Fact = BlockBody | EnergyBody | TerminalBody  # what is folded


class Identity(msgspec.Struct, frozen=True):
    """Which of a request's events one is: no two are alike."""

    request_id: str
    kind: EventKind
    index: int

    @property
    def id(self) -> str:
        """Unique with the tenant and the source."""
        return f"{self.request_id}/{self.kind.value}/{self.index}"


class UsageEvent(msgspec.Struct, frozen=True):
    """A statement with its identity: the row of `usage_events`, but for its place in it."""

    tenant_id: str
    source: str
    id: str
    kind: EventKind
    request_id: str
    index: int
    body: str  # canonical JSON
    body_sha256: str
    event_time_us: int


def state(body: Body, tenant_id: str, event_time_us: int) -> UsageEvent:
    """Give a body its identity: the id follows from what is stated, the hash from how.

    A run goes by its first block's index.
    """
    identity = identity_of(body.blocks if isinstance(body, BlockRun) else (body,))
    text = canonical_json.encode(body)
    return UsageEvent(
        tenant_id=tenant_id,
        source=SOURCE,
        id=identity.id,
        kind=identity.kind,
        request_id=identity.request_id,
        index=identity.index,
        body=text,
        body_sha256=canonical_json.sha256(text),
        event_time_us=event_time_us,
    )


def identity_of(facts: Sequence[Fact]) -> Identity:
    """What identifies the event that states these: by the first of a run."""
    match facts[0]:
        case BlockBody(request_id=request_id, block_index=index):
            return Identity(request_id, EventKind.BLOCK, index)
        case EnergyBody(request_id=request_id, index=index):
            return Identity(request_id, EventKind.ENERGY, index)
        case TerminalBody(request_id=request_id):
            return Identity(request_id, EventKind.TERMINAL, 0)


def read(kind: EventKind, text: str) -> tuple[Fact, ...]:
    """Decode a stored body; a run into its blocks."""
    match kind:
        case EventKind.BLOCK:
            return read_blocks(text)
        case EventKind.ENERGY:
            return (msgspec.json.decode(text, type=EnergyBody),)
        case EventKind.TERMINAL:
            return (msgspec.json.decode(text, type=TerminalBody),)


def read_blocks(text: str) -> tuple[BlockBody, ...]:
    """Decode a stored run; the logs of earlier versions have every block by itself."""
    if text.startswith('{"blocks":'):
        return msgspec.json.decode(text, type=BlockRun).blocks
    return (msgspec.json.decode(text, type=BlockBody),)


def blocks(facts: Iterable[Fact]) -> list[BlockBody]:
    """Those of these that are blocks, in their order."""
    return [fact for fact in facts if isinstance(fact, BlockBody)]


def block_body(step: StepRecord, block: BlockRecord, work: Work, vocab_size: int) -> BlockBody:
    """State a block in integers."""
    logprobs = tuple(map(_unats, block.logprobs))
    return BlockBody(
        request_id=block.request_id,
        block_index=block.block_index,
        engine_epoch=step.engine_epoch,
        step_index=step.step_index,
        start_ns=step.start_ns,
        end_ns=step.end_ns,
        token_ids=block.token_ids,
        pieces=block.pieces,
        logprobs_unats=logprobs,
        entropies_unats=tuple(map(_finite_unats, block.entropies)),
        information_ubits=information.total_ubits(logprobs, vocab_size),
        drafted_nodes=block.drafted_nodes,
        drafted_depth=block.drafted_depth,
        verified_nodes=block.verified_nodes,
        accepted_tokens=block.accepted_tokens,
        cached_tokens=block.cached_tokens,
        anchor=block.anchor,
        work=work,
        withheld_tokens=0,
        cached_prompt_tokens=block.cached_prompt_tokens,
        forced=block.forced,
        alternatives=tuple(map(_likely, block.alternatives)),
    )


def cut(body: BlockBody, tokens: int, vocab_size: int) -> BlockBody:
    """The statement of only the first `tokens` tokens of a block.

    Accepted tokens come first in a block; drafted depth is clipped at the same point, so that no
    rate counts what was never shown. What was computed stays computed.
    """
    logprobs = body.logprobs_unats[:tokens]
    anchor = body.anchor
    return msgspec.structs.replace(
        body,
        token_ids=body.token_ids[:tokens],
        pieces=body.pieces[:tokens],
        logprobs_unats=logprobs,
        entropies_unats=body.entropies_unats[:tokens],
        information_ubits=information.total_ubits(logprobs, vocab_size),
        drafted_depth=min(body.drafted_depth, tokens),
        accepted_tokens=min(body.accepted_tokens, tokens),
        cached_tokens=min(body.cached_tokens, tokens),
        anchor=anchor if anchor is not None and anchor < tokens else None,
        withheld_tokens=len(body.token_ids) - tokens,
        forced=tuple(index for index in body.forced if index < tokens),
        alternatives=body.alternatives[:tokens],
    )


def _likely(beside: Sequence[Alternative]) -> tuple[Likely, ...]:
    return tuple(Likely(each.token_id, each.piece, _unats(each.logprob)) for each in beside)


def _unats(logprob: float) -> int | None:
    if not -math.inf < logprob <= LOGPROB_MAX:  # nor is NaN
        return None
    return round(logprob * 1e6) if logprob < 0 else 0


def _finite_unats(value: float) -> int | None:
    return round(value * 1e6) if math.isfinite(value) else None
