"""Known work for an engine, and what it took: the measurements that a calibration is fitted to.

Each experiment keeps the engine at one kind of work for a while. Only time within steps counts, so
that the pauses between requests are nobody's cost.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from engine.records import EngineInfo, FinishReason, StepRecord
from engine.requests import GenerationRequest, SamplingParams
from metering import clock
from metering.energy.calibration import Observation
from metering.energy.meter import EnergyMeter
from metering.errors import InvalidCalibration

ANSWER_S_MAX = 120.0  # an engine that finishes nothing for so long is stuck
SETTLING_S_MAX = 10.0  # after an experiment, until the meter has moved past its end
PATTERN_TOKENS = 6  # a prompt that repeats itself is drafted from


class Experiment(NamedTuple):
    """One kind of work. Lengths are parts of the model's context."""

    name: str
    requests: int  # at once
    prompt: float
    output: float
    draft: bool = False


EXPERIMENTS = (
    Experiment("one, short", 1, 0.01, 0.15),
    Experiment("one, long", 1, 0.5, 0.15),
    Experiment("four, short", 4, 0.01, 0.1),
    Experiment("four, long", 4, 0.4, 0.1),
    Experiment("eight, middling", 8, 0.2, 0.05),
    Experiment("drafted", 1, 0.1, 0.15, draft=True),
    Experiment("four, drafted", 4, 0.1, 0.1, draft=True),
    Experiment("prompt", 1, 0.4, 0.0),
    Experiment("long prompt", 1, 0.7, 0.0),
    Experiment("prompts", 4, 0.2, 0.0),
)


class StepLog:
    """Keeps the steps of an engine, and lets one wait for requests to finish.

    Implements `engine.protocols.StepObserver`.
    """

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self._finished: dict[str, str | None] = {}  # by request; null, or what went wrong
        self._changed = threading.Condition()

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Take consecutive steps."""
        with self._changed:
            self.steps += steps
            for step in steps:
                for finish in step.finishes:
                    failed = finish.reason is FinishReason.ERROR
                    why = finish.detail or "failed" if failed else None
                    self._finished[finish.request_id] = why
            self._changed.notify_all()

    def wait_for(self, request_ids: Sequence[str]) -> None:
        """Wait until all of these are finished; raises InvalidCalibration when one failed."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: all(name in self._finished for name in request_ids), ANSWER_S_MAX
            ):
                raise InvalidCalibration("the engine did not finish what it was given")
            if faults := [why for name in request_ids if (why := self._finished.pop(name))]:
                raise InvalidCalibration(f"the engine could not do what it was given: {faults[0]}")

    def take(self) -> list[StepRecord]:
        """The steps since this was last called."""
        with self._changed:
            steps, self.steps = self.steps, []
            return steps


class Laboratory:
    """Puts an engine to work and reads its meter."""

    def __init__(
        self,
        submit: Callable[[GenerationRequest], None],
        log: StepLog,
        meter: EnergyMeter,
        engine: EngineInfo,
        kv_tokens: int,
    ) -> None:
        """`kv_tokens` is the room that the engine has for all requests of a moment."""
        self._submit = submit
        self._log = log
        self._meter = meter
        self._context = min(engine.context_length, kv_tokens)
        self._kv_tokens = kv_tokens
        self._vocab_size = engine.vocab_size
        self._random = random.Random(0)  # noqa: S311 -- prompts, that none repeats another
        self._count = 0

    def observe(self, experiment: Experiment, seconds: float) -> Observation:
        """Do this work for so long at least; raises InvalidCalibration where it isn't metered."""
        self._settle(clock.monotonic_ns())
        self._log.take()
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            requests = list(self._requests(experiment))
            for request in requests:
                self._submit(request)
            self._log.wait_for([request.request_id for request in requests])
        steps = self._log.take()
        self._settle(steps[-1].end_ns)
        energy_uj = sum(self._step_uj(step) for step in steps)
        self._meter.forget_before(steps[-1].end_ns)
        works = [entry.work for step in steps for entry in step.work]
        return Observation(
            steps=sum(1 for step in steps if step.work),
            prefill_tokens=sum(work.prefill_tokens + work.recomputed_tokens for work in works),
            verified_nodes=sum(work.verified_nodes for work in works),
            kv_read_tokens=sum(work.kv_read_tokens + work.recomputed_kv_tokens for work in works),
            energy_uj=energy_uj,
        )

    def _requests(self, experiment: Experiment) -> Iterator[GenerationRequest]:
        room = min(self._context, self._kv_tokens // (2 * experiment.requests))
        prompt_tokens = max(4, round(experiment.prompt * room))
        for _ in range(experiment.requests):
            self._count += 1
            length = PATTERN_TOKENS if experiment.draft else prompt_tokens
            pattern = [self._random.randrange(self._vocab_size) for _ in range(length)]
            prompt = (pattern * (prompt_tokens // length + 1))[:prompt_tokens]
            yield GenerationRequest(
                request_id=f"experiment-{self._count}",
                tenant_id=f"experiment-{self._count}",  # nothing is taken from a cache
                prompt_ids=tuple(prompt),
                max_tokens=max(1, round(experiment.output * room)),
                sampling=SamplingParams(),
                draft=experiment.draft,
                ignore_eos=True,
            )

    def _settle(self, until_ns: int) -> None:
        """Wait until the meter knows what was taken until then."""
        limit_s = time.monotonic() + SETTLING_S_MAX
        while (self._meter.known_until_ns or 0) < until_ns:
            if time.monotonic() > limit_s:
                raise InvalidCalibration("the meter has stopped moving")
            self._meter.watch()
            time.sleep(0.01)

    def _step_uj(self, step: StepRecord) -> int:
        segments = self._meter.segments(step.start_ns, step.end_ns)
        if sum(each.end_ns - each.start_ns for each in segments) < step.end_ns - step.start_ns:
            raise InvalidCalibration("the meter was reset, lost or late within a step")
        return sum(each.own_uj for each in segments)
