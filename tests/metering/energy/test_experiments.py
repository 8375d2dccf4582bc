"""Known work and what it took: only steps count, and only what the meter knows."""

from __future__ import annotations

import pytest
from metering_cases import INFO, ScriptedSource, scripted_meter, step

from engine.records import FinishReason, FinishRecord, Work
from engine.requests import GenerationRequest
from metering import clock
from metering.energy import experiments
from metering.energy.experiments import Experiment, Laboratory, StepLog
from metering.energy.protocols import Reading
from metering.errors import InvalidCalibration

WORK = Work(prefill_tokens=2, verified_nodes=3, kv_read_tokens=40)


class Engine:
    """Does each request in one step of a millisecond, on a counter of a microjoule per microsecond.

    Between steps it does nothing for ten milliseconds.
    """

    def __init__(self, *, origin_every: int = 2**62, reason: FinishReason = FinishReason.LENGTH):
        self.log = StepLog()
        self.source = ScriptedSource()
        self.meter = scripted_meter(self.source)
        self.given: list[GenerationRequest] = []
        self._now_ns = clock.monotonic_ns()
        self._origin_every, self._reason = origin_every, reason
        self._read()

    def submit(self, request: GenerationRequest) -> None:
        self.given.append(request)
        start_ns = self._now_ns = self._now_ns + 10**7
        self._read()
        self._now_ns += 10**6
        self._read()
        end = FinishRecord(request.request_id, self._reason, 1, 1, "no room")
        works = {request.request_id: WORK}
        done = step(
            len(self.given), finishes=[end], work=works, start_ns=start_ns, end_ns=self._now_ns
        )
        self.log.on_steps([done])

    def laboratory(self) -> Laboratory:
        return Laboratory(self.submit, self.log, self.meter, INFO, kv_tokens=1024)

    def _read(self) -> None:
        origin = self._now_ns // self._origin_every
        self.source.reading = Reading(self._now_ns, self._now_ns // 1000, 0, origin)
        self.meter.sample()


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scripted meter runs ahead of the clock, so nothing has to be waited for."""
    monkeypatch.setattr(Laboratory, "_settle", lambda *_: None)


def test_work_and_the_energy_of_its_steps_are_added_up() -> None:
    engine = Engine()
    found = engine.laboratory().observe(Experiment("two", 2, 0.25, 0.1), 0.005)
    steps = len(engine.given)
    assert steps >= 2
    assert (found.steps, found.prefill_tokens) == (steps, 2 * steps)
    assert (found.verified_nodes, found.kv_read_tokens) == (3 * steps, 40 * steps)
    assert found.energy_uj == 1000 * steps, "what passed between the steps is nobody's cost"
    prompts = {request.prompt_ids for request in engine.given}
    assert len(prompts) == steps, "none is found in a cache"
    assert {len(prompt) for prompt in prompts} == {64}


def test_a_drafted_prompt_repeats_itself() -> None:
    engine = Engine()
    engine.laboratory().observe(Experiment("drafted", 1, 0.1, 0.1, draft=True), 0.001)
    prompt = engine.given[0].prompt_ids
    assert prompt[:6] == prompt[6:12]
    assert engine.given[0].draft


def test_a_step_that_the_meter_does_not_know_spoils_the_experiment() -> None:
    with pytest.raises(InvalidCalibration, match="reset, lost or late"):
        Engine(origin_every=1).laboratory().observe(Experiment("one", 1, 0.1, 0.1), 0.001)


def test_what_the_engine_cannot_do_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidCalibration, match="no room"):
        Engine(reason=FinishReason.ERROR).laboratory().observe(Experiment("one", 1, 1, 0), 0.001)
    monkeypatch.setattr(experiments, "ANSWER_S_MAX", 0.01)
    with pytest.raises(InvalidCalibration, match="did not finish"):
        StepLog().wait_for(["never"])
