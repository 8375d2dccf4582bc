"""Requests run to their end on a decode loop, in this thread, and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from engine.errors import EngineError
from engine.loop.decoding import DecodeLoop
from engine.loop.tally import counted
from engine.processors import LogitsProcessor
from engine.records import (
    Alternative,
    BlockRecord,
    DraftCounters,
    FinishReason,
    FinishRecord,
    StepRecord,
)
from engine.requests import GenerationRequest


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished request."""

    request_id: str
    prompt_tokens: int
    token_ids: tuple[int, ...]
    text: bytes
    logprobs: tuple[float, ...]  # nats, raw; parallel to `token_ids`
    alternatives: tuple[tuple[Alternative, ...], ...]  # parallel too; empty if not asked for
    forced: tuple[int, ...]  # indexes of tokens to which a grammar left no alternative
    finish_reason: FinishReason
    detail: str | None
    counters: DraftCounters
    prefill_ms: float | None  # from its first row to its first token; null if it has none
    decode_tokens_per_s: float | None  # after the first block; null if nothing followed


@dataclass(slots=True)
class _Unfinished:
    """A request that is running, and what has been heard of it."""

    request: GenerationRequest
    blocks: list[BlockRecord] = field(default_factory=list)
    started_ns: int | None = None
    first_block_ns: int | None = None
    last_block_ns: int | None = None

    def take(self, block: BlockRecord, step: StepRecord) -> None:
        self.blocks.append(block)
        self.last_block_ns = step.end_ns
        if self.first_block_ns is None:
            self.first_block_ns = step.end_ns

    def completion(self, finish: FinishRecord) -> Completion:
        prefill_ms = tokens_per_s = None
        if self.started_ns is not None and self.first_block_ns is not None:
            prefill_ms = (self.first_block_ns - self.started_ns) / 1e6
        if len(self.blocks) > 1 and self.first_block_ns and self.last_block_ns:
            later = sum(len(block.token_ids) for block in self.blocks[1:])
            tokens_per_s = later * 1e9 / (self.last_block_ns - self.first_block_ns)
        return Completion(
            request_id=self.request.request_id,
            prompt_tokens=len(self.request.prompt_ids),
            token_ids=tuple(token for block in self.blocks for token in block.token_ids),
            text=b"".join(piece for block in self.blocks for piece in block.pieces),
            logprobs=tuple(value for block in self.blocks for value in block.logprobs),
            alternatives=tuple(beside for block in self.blocks for beside in block.alternatives),
            forced=tuple(self._forced()),
            finish_reason=finish.reason,
            detail=finish.detail,
            counters=counted(self.blocks),
            prefill_ms=prefill_ms,
            decode_tokens_per_s=tokens_per_s,
        )

    def _forced(self) -> Iterator[int]:
        first = 0
        for block in self.blocks:
            yield from (first + index for index in block.forced)
            first += len(block.token_ids)


def complete(
    loop: DecodeLoop,
    requests: Iterable[GenerationRequest],
    *,
    concurrency: int,
    processors: Sequence[LogitsProcessor] = (),
    observe: Callable[[StepRecord], None] = lambda _: None,
) -> Iterator[Completion]:
    """Run requests to their end, `concurrency` at a time; yields each as it finishes.

    A request is taken from `requests` just before it is submitted; `observe` hears of every step.

    Raises what the loop's `submit` raises, after which the loop still holds the others. A caller
    that stops iterating leaves requests in the loop too.
    """
    coming = iter(requests)
    running: dict[str, _Unfinished] = {}
    more = True
    while more or running:
        while more and len(running) < concurrency:
            request = next(coming, None)
            if request is None:
                more = False
            else:
                loop.submit(request, processors)
                running[request.request_id] = _Unfinished(request)
        step = loop.step()
        if step is None:
            continue
        observe(step)
        for part in step.work:
            for request_id in (part.request_id, *part.shared_with):
                unfinished = running.get(request_id)
                if unfinished and unfinished.started_ns is None:
                    unfinished.started_ns = step.start_ns
        for block in step.blocks:
            running[block.request_id].take(block, step)
        for finish in step.finishes:
            yield running.pop(finish.request_id).completion(finish)


def failed(completion: Completion) -> EngineError:
    """Return the error that a completion with reason ERROR stands for."""
    return EngineError(completion.detail or "the engine failed")
