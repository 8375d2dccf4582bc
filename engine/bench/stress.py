"""A stress run: full load for a while, and a verdict on what came out.

Prompts are asked again and again, as many at once as is said, greedy and sampled in turn. Every
answer must be, token by token, what plain decoding of the same request says (drafting, batching
and caches change nothing); anything else is *garbled*. Answers that are not UTF-8 are counted
too, but a model may mean them. *Jitter* is the time a running request waits between two blocks:
its 99th percentile may be `JITTER_MAX` times its median. A request that ends as an error fails
the run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from engine.bench.records import Ask
from engine.bench.statistics import percentile
from engine.completions import Completion, complete
from engine.config import EngineConfig
from engine.opening import OpenModel
from engine.records import FinishReason, StepRecord
from engine.requests import GenerationRequest, SamplingParams

JITTER_MAX = 10.0
TEMPERATURE = 0.8  # of every second request
SHOWN = 10  # faults described at most


class Verdict(msgspec.Struct, frozen=True):
    """What a stress run came to."""

    requests: int
    tokens: int
    seconds: float
    tokens_per_s: float
    errors: int
    garbled: int
    not_utf8: int  # answers; one that its limit of tokens cut within a character is not meant
    gap_ms_median: float | None  # between a request's blocks; null with fewer than two blocks
    gap_ms_p99: float | None
    gap_ms_max: float | None
    faults: tuple[str, ...]  # what is wrong, in words; the first few

    @property
    def jitter(self) -> float | None:
        """The 99th percentile of the gaps to their median; null where there are none."""
        if self.gap_ms_median is None or self.gap_ms_p99 is None:
            return None
        return self.gap_ms_p99 / self.gap_ms_median if self.gap_ms_median else None

    @property
    def passed(self) -> bool:
        """Whether nothing was garbled, nothing failed, and the pace was even enough."""
        even = self.jitter is None or self.jitter <= JITTER_MAX
        return not self.errors and not self.garbled and even


@dataclass(slots=True)
class _Gaps:
    """The time between the blocks of each running request."""

    last_ns: dict[str, int] = field(default_factory=dict)
    gaps_ms: list[float] = field(default_factory=list)

    def take(self, step: StepRecord) -> None:
        for block in step.blocks:
            if last := self.last_ns.get(block.request_id):
                self.gaps_ms.append((step.end_ns - last) / 1e6)
            self.last_ns[block.request_id] = step.end_ns
        for finish in step.finishes:
            self.last_ns.pop(finish.request_id, None)


def stress(
    model: OpenModel,
    config: EngineConfig,
    asks: Sequence[Ask],
    *,
    concurrency: int,
    duration_s: float,
    max_tokens: int,
) -> Verdict:
    """Load the engine for about `duration_s`: what runs then is finished.

    The plain answers to compare with are made first and are not part of that time.
    """
    plain = list(_requests(asks, max_tokens, len(asks) * 2))
    undrafted = model.loop(msgspec.structs.replace(config, draft=False))
    expected = {
        done.request_id.rpartition("@")[0]: done.token_ids
        for done in complete(undrafted, plain, concurrency=1)
    }
    gaps, faults = _Gaps(), []
    requests = tokens = errors = garbled = not_utf8 = 0
    began = time.monotonic()

    def coming() -> Iterator[GenerationRequest]:
        for request in _requests(asks, max_tokens, None):
            if requests and time.monotonic() - began >= duration_s:
                return
            yield request

    loop = model.loop(config)
    for done in complete(loop, coming(), concurrency=concurrency, observe=gaps.take):
        requests += 1
        tokens += len(done.token_ids)
        fault = _fault(done, expected[done.request_id.rpartition("@")[0]])
        if fault is not None:
            errors += done.finish_reason is FinishReason.ERROR
            garbled += done.finish_reason is not FinishReason.ERROR
            faults.append(f"{done.request_id}: {fault}")
        not_utf8 += not _is_text(done)
    seconds = time.monotonic() - began
    ascending = sorted(gaps.gaps_ms)
    return Verdict(
        requests=requests,
        tokens=tokens,
        seconds=seconds,
        tokens_per_s=tokens / seconds,
        errors=errors,
        garbled=garbled,
        not_utf8=not_utf8,
        gap_ms_median=median(ascending) if ascending else None,
        gap_ms_p99=percentile(ascending, 0.99),
        gap_ms_max=ascending[-1] if ascending else None,
        faults=tuple(faults[:SHOWN]),
    )


def _requests(
    asks: Sequence[Ask], max_tokens: int, count: int | None
) -> Iterator[GenerationRequest]:
    """Yield requests without end, or `count`: each prompt greedy, then each sampled, and again.

    What stands before the last "@" of an id says which plain answer it must equal.
    """
    number = 0
    while count is None or number < count:
        turn, index = divmod(number, len(asks))
        sampled = turn % 2 == 1
        ask = asks[index]
        yield GenerationRequest(
            request_id=f"{ask.id}{'~' if sampled else ''}@{turn}",
            tenant_id="stress",
            prompt_ids=ask.prompt_ids,
            max_tokens=max_tokens,
            sampling=SamplingParams(temperature=TEMPERATURE if sampled else 0.0, seed=index),
        )
        number += 1


def _fault(done: Completion, expected: tuple[int, ...]) -> str | None:
    """Say what is wrong with an answer; null if nothing is."""
    if done.finish_reason is FinishReason.ERROR:
        return done.detail or "it failed"
    if done.token_ids != expected:
        pairs = enumerate(zip(done.token_ids, expected, strict=False))
        at = next((index for index, (one, other) in pairs if one != other), "the end")
        return f"garbled: it parts from plain decoding at token {at}"
    return None


def _is_text(done: Completion) -> bool:
    try:
        done.text.decode()
    except UnicodeDecodeError as error:
        return done.finish_reason is FinishReason.LENGTH and error.end == len(done.text)
    return True
