"""Decoding with and without drafting, side by side in one run.

The arms take turns on the same prompts, each turn on a loop that has nothing cached, so that what
the machine does meanwhile falls on all of them alike. Medians are over rounds; ratios are taken
round by round. Every arm must emit the same tokens, and whether it did is reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from engine.completions import Completion, complete, failed
from engine.config import EngineConfig
from engine.loop.tally import added
from engine.opening import OpenModel
from engine.records import DraftCounters, FinishReason
from engine.requests import GenerationRequest

# Drafting off, and on under both rollback policies.
ARMS: dict[str, dict[str, object]] = {
    "plain": {"draft": False},
    "anchor": {"draft": True, "rollback": "anchor"},
    "restart": {"draft": True, "rollback": "restart"},
}


class ArmResult(msgspec.Struct, frozen=True):
    """One arm at one concurrency. Rates are null where nothing was drafted."""

    arm: str
    tokens_per_s: float  # emitted over the time of all steps, prefill included; median of rounds
    ratio: float  # to plain decoding, median of rounds
    emitted_tokens: int
    mean_accepted_length: float | None  # emitted tokens per block
    draft_hit_rate: float | None
    rejection_rate: float | None
    mean_drafted_depth: float | None
    node_efficiency: float | None  # accepted tokens per verified node
    cached_tokens: int


class ConcurrencyResult(msgspec.Struct, frozen=True):
    """All arms at one concurrency."""

    concurrency: int
    rounds: int
    prompts_per_round: int
    identical: bool  # whether all arms emitted the same tokens
    arms: tuple[ArmResult, ...]


@dataclass(slots=True)
class _Tally:
    """What one arm has done so far."""

    rates: list[float] = field(default_factory=list)
    counters: DraftCounters = field(default_factory=DraftCounters)

    def take(self, completions: Sequence[Completion], elapsed_s: float) -> None:
        for completion in completions:
            self.counters = added(self.counters, completion.counters)
        self.rates.append(sum(len(done.token_ids) for done in completions) / elapsed_s)

    def result(self, arm: str, plain: _Tally) -> ArmResult:
        counters, ratios = self.counters, zip(self.rates, plain.rates, strict=True)
        hit_rate = counters.draft_hit_rate
        drafted = counters.drafted_depth > 0
        return ArmResult(
            arm=arm,
            tokens_per_s=median(self.rates),
            ratio=median(own / other for own, other in ratios),
            emitted_tokens=counters.emitted_tokens,
            mean_accepted_length=counters.mean_accepted_length,
            draft_hit_rate=hit_rate,
            rejection_rate=None if hit_rate is None else 1.0 - hit_rate,
            mean_drafted_depth=counters.drafted_depth / counters.steps if drafted else None,
            node_efficiency=counters.accepted_tokens / counters.verified_nodes if drafted else None,
            cached_tokens=counters.cached_tokens,
        )


def measure(
    model: OpenModel,
    config: EngineConfig,
    requests: Sequence[GenerationRequest],
    *,
    concurrency: int,
    duration_s: float,
    progress: Callable[[str], None] = lambda _: None,
) -> ConcurrencyResult:
    """Run whole rounds of all arms until `duration_s` is over, one round at least."""
    tallies = {arm: _Tally() for arm in ARMS}
    per_round = min(concurrency, len(requests))
    rounds, identical, until = 0, True, time.monotonic() + duration_s
    while rounds == 0 or time.monotonic() < until:
        first = rounds * per_round
        chosen = [requests[(first + index) % len(requests)] for index in range(per_round)]
        said: set[tuple[tuple[int, ...], ...]] = set()
        # Each round begins with another arm: being first is no advantage.
        order = [list(ARMS)[(rounds + turn) % len(ARMS)] for turn in range(len(ARMS))]
        for arm in order:
            completions, elapsed_s = _run(model, config, arm, chosen)
            tallies[arm].take(completions, elapsed_s)
            said.add(tuple(completion.token_ids for completion in completions))
            rate = tallies[arm].rates[-1]
            progress(f"concurrency {concurrency}, round {rounds + 1}, {arm}: {rate:.1f} tokens/s")
        identical = identical and len(said) == 1
        rounds += 1
    return ConcurrencyResult(
        concurrency=concurrency,
        rounds=rounds,
        prompts_per_round=per_round,
        identical=identical,
        arms=tuple(tallies[arm].result(arm, tallies["plain"]) for arm in ARMS),
    )


def _run(
    model: OpenModel, config: EngineConfig, arm: str, requests: Sequence[GenerationRequest]
) -> tuple[list[Completion], float]:
    loop = model.loop(msgspec.structs.replace(config, **ARMS[arm]))
    began = time.perf_counter()
    done = {
        completion.request_id: completion
        for completion in complete(loop, requests, concurrency=len(requests))
    }
    elapsed_s = time.perf_counter() - began
    for completion in done.values():
        if completion.finish_reason is FinishReason.ERROR:
            raise failed(completion)
    return [done[request.request_id] for request in requests], elapsed_s
