"""Our engine as an arm of the bench: the decode loop, in the worker's own thread."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from engine.bench.records import Answer, Run, Scored, Setup, StepLog, Windows, Workload
from engine.bench.variants import variant
from engine.completions import Completion, complete, failed
from engine.config import EngineConfig
from engine.loop.cost import UNMEASURED
from engine.loop.decoding import DecodeLoop
from engine.opening import OpenModel, open_foresight, open_model
from engine.perplexity.scoring import score
from engine.records import FinishReason, StepRecord
from engine.requests import GenerationRequest, SamplingParams


class OwnArm:
    """A `.dfm` opened with one configuration; variants change it run by run."""

    def __init__(self, setup: Setup) -> None:
        assert setup.config is not None
        self._config = msgspec.structs.replace(setup.config, threads=setup.threads)
        self._path = Path(setup.path)
        drafting = msgspec.structs.replace(self._config, draft=True)  # some variant may
        self._model = open_model(self._path, drafting)
        self._by_head = {self._config.draft_head: self._model}
        self._head_ms: dict[str, float] = {}

    @property
    def details(self) -> dict[str, str]:
        """What computes here."""
        info = self._model.info
        return {
            "model": info.model,
            "checksum": info.checksum,
            "backend": info.backend,
            "instruction set": info.instruction_set,
            "threads": str(info.thread_count),
        }

    def run(self, workload: Workload) -> Run:
        """Continue the prompts on a fresh loop. Each is a tenant of its own: no cache helps it.

        A warm variant answers everything once before, untimed, on the same loop.
        """
        chosen = variant(workload.variant)
        config = chosen.config(self._config)
        model = self._with_head(config)
        loop = model.loop(config)
        if chosen.warm:
            _played(loop, workload)
        run = _played(loop, workload)
        return msgspec.structs.replace(run, head_ms=self._draft_ms(model, config))

    def _with_head(self, config: EngineConfig) -> OpenModel:
        """Return the model with the head that `config` names; the weights are shared."""
        if config.draft_head not in self._by_head:
            curve = self._model.curve or UNMEASURED
            foresight = open_foresight(self._path, config, self._model.decoder, curve)
            self._by_head[config.draft_head] = replace(self._model, foresight=foresight)
        return self._by_head[config.draft_head]

    def _draft_ms(self, model: OpenModel, config: EngineConfig) -> float | None:
        head = model.foresight.head
        if head is None or not config.draft:
            return None
        if config.draft_head not in self._head_ms:
            self._head_ms[config.draft_head] = head.draft_ms()
        return self._head_ms[config.draft_head]

    def score(self, windows: Windows) -> Scored:
        """Score windows with the bare decoder."""
        return Scored(*score(self._model.decoder, windows.windows, windows.firsts))


def _played(loop: DecodeLoop, workload: Workload) -> Run:
    steps = StepLog.of(workload)
    handed_over_ns: dict[str, int] = {}
    first_token_ns: dict[str, int] = {}

    def requests() -> Iterator[GenerationRequest]:
        for ask in workload.asks:
            handed_over_ns[ask.id] = time.monotonic_ns()
            yield GenerationRequest(
                request_id=ask.id,
                tenant_id=ask.id,
                prompt_ids=ask.prompt_ids,
                max_tokens=workload.max_tokens,
                sampling=SamplingParams(temperature=workload.temperature, seed=workload.seed),
            )

    def take(step: StepRecord) -> None:
        steps.take(
            (step.end_ns - step.start_ns) / 1e6,
            requests=len(step.blocks),
            prompt_tokens=sum(part.work.prefill_tokens for part in step.work),
            emitted_tokens=sum(len(block.token_ids) for block in step.blocks),
        )
        for block in step.blocks:
            first_token_ns.setdefault(block.request_id, step.end_ns)

    def answer(done: Completion) -> Answer:
        if done.finish_reason is FinishReason.ERROR:
            raise failed(done)
        began, first = handed_over_ns[done.request_id], first_token_ns.get(done.request_id)
        return Answer(
            id=done.request_id,
            token_ids=done.token_ids,
            first_token_ms=None if first is None else (first - began) / 1e6,
            counters=done.counters,
        )

    before = loop.stats().caches.experts
    began = time.perf_counter()
    done = complete(loop, requests(), concurrency=workload.concurrency, observe=take)
    answers = {completion.request_id: answer(completion) for completion in done}
    elapsed_ms = (time.perf_counter() - began) * 1e3
    run = steps.run(tuple(answers[ask.id] for ask in workload.asks), elapsed_ms)
    after = loop.stats().caches.experts
    return msgspec.structs.replace(run, experts=after.since(before) if after and before else None)
