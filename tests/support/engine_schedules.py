"""Random lives of an engine: arrivals, cancellations, shapes, scarcity; and what must hold.

A pool of requests is decoded alone and undrafted once; whatever a schedule does to them, each must
see bitwise the same logits and emit the same tokens, as far as it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from types import SimpleNamespace

import numpy as np

from engine.config import EngineConfig
from engine.grammar.grammars import Grammars
from engine.loop.cost import StepCost
from engine.loop.decoding import DecodeLoop
from engine.records import FinishReason, FinishRecord, StepRecord
from engine.requests import GenerationRequest
from engine.scheduler.admission import Limits

LoopFactory = Callable[..., DecodeLoop]


@dataclass
class Heard:
    """Everything that one engine said of its requests, and the logits it drew from."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    text: dict[str, bytes] = field(default_factory=dict)
    scores: dict[str, list[tuple[object, ...]]] = field(default_factory=dict)
    blocks: dict[str, int] = field(default_factory=dict)
    found: dict[str, int] = field(default_factory=dict)  # prompt tokens not computed for it
    finishes: dict[str, FinishRecord] = field(default_factory=dict)
    logits: dict[tuple[str, int], bytes] = field(default_factory=dict)
    steps: list[StepRecord] = field(default_factory=list)

    def probe(self, request_id: str, position: int, row: np.ndarray) -> None:
        """Keep the bits of one row of raw logits, as their digest."""
        self.logits[request_id, position] = blake2b(row.tobytes(), digest_size=16).digest()

    def take(self, step: StepRecord | None) -> None:
        """Fold one step record, checking that blocks are gapless and nothing follows a finish."""
        assert step is not None
        assert step.step_index == len(self.steps)
        assert step.start_ns <= step.end_ns
        self.steps.append(step)
        for block in step.blocks:
            name = block.request_id
            assert name not in self.finishes
            assert block.block_index == self.blocks.get(name, 0)
            assert len(block.token_ids) == len(block.pieces) == len(block.logprobs) > 0
            assert block.accepted_tokens <= block.drafted_depth
            assert block.cached_tokens <= block.accepted_tokens <= len(block.token_ids)
            assert not (block.cached_prompt_tokens and block.block_index)
            self.found[name] = self.found.get(name, 0) + block.cached_prompt_tokens
            self.blocks[name] = block.block_index + 1
            self.tokens.setdefault(name, []).extend(block.token_ids)
            self.text[name] = self.text.get(name, b"") + b"".join(block.pieces)
            count = len(block.token_ids)
            forced = [index in block.forced for index in range(count)]
            beside = block.alternatives or [()] * count
            self.scores.setdefault(name, []).extend(
                zip(block.logprobs, block.entropies, forced, beside, strict=True)
            )
        for finish in step.finishes:
            assert finish.request_id not in self.finishes
            assert finish.block_count == self.blocks.get(finish.request_id, 0)
            assert finish.token_count == len(self.tokens.get(finish.request_id, []))
            self.finishes[finish.request_id] = finish


class FixedCost(StepCost):
    """Learns nothing, so that the trees a test sees don't depend on how fast the machine is."""

    def observe(self, rows: int, time_ms: float) -> None:
        """Keep the prior."""

    def observe_asking(self, draws: int, plain_ms: float, spent_ms: float) -> None:
        """Go on asking."""


class NoCost(FixedCost):
    """Thinks every row worth its while, so that unlikely nodes are tried too."""

    def nodes_worth(self, rows: int, tokens: float, probabilities: Sequence[float]) -> int:
        """All of them are."""
        return len(probabilities)

    def least_probability(self, rows: int, tokens: float, most: int) -> float:
        """Nothing is too unlikely."""
        return 0.0


def narrowed(decoder: object, slots: int) -> object:
    """The same decoder with fewer slots, so that pages become scarce."""
    storage = SimpleNamespace(slots=slots, move=decoder.storage.move)
    return SimpleNamespace(storage=storage, forward=decoder.forward, statistics=decoder.statistics)


def loop_on(
    decoder: object,
    vocabulary: object,
    vocab_size: int,
    config: EngineConfig,
    heard: Heard,
    slots: int | None = None,
    cost: StepCost | None = None,
    grammars: Grammars | None = None,
) -> DecodeLoop:
    """A loop on `slots` slots of a decoder, overheard."""
    slots = slots or decoder.storage.slots
    return DecodeLoop(
        narrowed(decoder, slots),
        vocabulary,
        Limits(vocab_size, context_length=slots, kv_tokens=slots, grammars=grammars),
        config,
        cost=cost or FixedCost(),
        probe=heard.probe,
    )


def run_alone(loop_of: Callable[[Heard], DecodeLoop], requests: list[GenerationRequest]) -> Heard:
    """Decode each request alone, one after the other."""
    heard = Heard()
    loop = loop_of(heard)
    for request in requests:
        loop.submit(request)
        while loop.busy:
            heard.take(loop.step())
    return heard


@dataclass(frozen=True)
class Schedule:
    """One life of an engine."""

    config: EngineConfig
    pages: int
    arrivals: dict[int, list[GenerationRequest]]
    cancellations: dict[int, list[str]]
    cost: StepCost


def random_schedule(
    random: np.random.Generator, requests: list[GenerationRequest], least_pages: int
) -> Schedule:
    """Draw shapes, policies, scarcity, arrivals and cancellations."""
    count = int(random.integers(1, 9))
    chosen = random.choice(len(requests), size=count, replace=False)
    config = EngineConfig(
        draft=bool(random.random() < 0.9),
        draft_block_size=int(random.integers(1, 9)),
        verifier_batch_size=int(random.integers(1, 5)),
        node_budget=int(random.integers(1, 13)),
        entropy_threshold=float(random.choice([0.0, 0.8, 1.2, 99.0])),
        rollback=str(random.choice(["anchor", "restart"])),
        max_running=int(random.integers(1, 9)),
        max_step_rows=int(random.integers(4, 33)),
        prefill_chunk=int(random.integers(1, 17)),
        draft_cache_tokens=int(random.choice([0, 40, 10_000])),
        single_flight=bool(random.random() < 0.5),
    )
    arrivals: dict[int, list[GenerationRequest]] = {}
    cancellations: dict[int, list[str]] = {}
    for index in chosen:
        at = int(random.integers(0, 5))
        arrivals.setdefault(at, []).append(requests[index])
        if random.random() < 0.15:
            until = at + int(random.integers(0, 12))
            cancellations.setdefault(until, []).append(requests[index].request_id)
    # Mostly scarce: several requests start, and then not all can go on.
    pages = least_pages + int(random.integers(0, 3 if random.random() < 0.7 else 2 * least_pages))
    cost = NoCost() if random.random() < 0.5 else FixedCost()
    return Schedule(config, pages, arrivals, cancellations, cost)


def live_through(schedule: Schedule, loop: DecodeLoop, heard: Heard) -> None:
    """Carry a schedule out and check the books whenever nothing is in flight."""
    at, last = 0, max([*schedule.arrivals, *schedule.cancellations])
    while at <= last or loop.busy:
        for request in schedule.arrivals.get(at, []):
            loop.submit(request)
        for request_id in schedule.cancellations.get(at, []):
            loop.cancel(request_id)
        if loop.busy:
            heard.take(loop.step())
        loop.pool.check()
        at += 1
        assert at < 5000
    loop.check()
    assert loop.scheduler.running == loop.scheduler.waiting == 0


def adopted_tokens(heard: Heard, schedule: Schedule) -> int:
    """Prompt tokens that were found cached; the others were each computed once as prefill."""
    prefill: dict[str, int] = {}
    for part in (part for step in heard.steps for part in step.work):
        prefill[part.request_id] = prefill.get(part.request_id, 0) + part.work.prefill_tokens
    for request in (request for group in schedule.arrivals.values() for request in group):
        name = request.request_id
        if heard.blocks.get(name) and not schedule.config.single_flight:
            assert prefill.get(name, 0) + heard.found[name] == len(request.prompt_ids)
    return sum(heard.found.values())


def assert_same(heard: Heard, reference: Heard, schedule: Schedule) -> None:
    """Every request saw the same bits and said the same, as far as it got."""
    for request in (request for group in schedule.arrivals.values() for request in group):
        name = request.request_id
        finish, expected = heard.finishes[name], reference.finishes[name]
        tokens, whole = heard.tokens.get(name, []), reference.tokens[name]
        if finish.reason is FinishReason.CANCELLED:
            assert tokens == whole[: len(tokens)]
        else:
            assert (finish.reason, tokens) == (expected.reason, whole)
            assert heard.text[name] == reference.text[name]
        assert heard.scores.get(name, []) == reference.scores[name][: len(tokens)]
    prompts = {
        request.request_id: len(request.prompt_ids)
        for group in schedule.arrivals.values()
        for request in group
    }
    for (name, position), row in heard.logits.items():
        # Rows of several are told in their leader's name, though its own text may end sooner.
        if position < prompts[name] + len(reference.tokens[name]):
            assert row == reference.logits[name, position], (name, position)
