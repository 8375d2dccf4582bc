"""What the gateway may rely on, of an engine in its own process or in another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import msgspec
import pytest
from engine_ears import Ears
from engine_sequences import request
from tiny_models import write_tiny_dfm

from api.protocols import EngineClient
from engine.config import EngineConfig
from engine.errors import (
    EngineUnavailable,
    InvalidConfig,
    InvalidModelFile,
    InvalidRequest,
    PromptTooLong,
)
from engine.process import EngineProcess
from engine.records import FinishReason
from engine.requests import SamplingParams
from engine.service import EngineService

CONFIG = EngineConfig(kv_tokens=512, threads=1, max_running=4)
IMPLEMENTATIONS = pytest.mark.parametrize("kind", [EngineService, EngineProcess])


class Rig(NamedTuple):
    """A running engine and what it is heard to do."""

    engine: EngineClient
    ears: Ears


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dfm(tmp_path_factory.mktemp("models") / "tiny.dfm")


@pytest.fixture(scope="module", params=[EngineService, EngineProcess])
def rig(request: pytest.FixtureRequest, model: Path) -> Iterator[Rig]:
    ears = Ears()
    engine = request.param(model, CONFIG, ears)
    engine.start()
    yield Rig(engine, ears)
    engine.close()


def test_a_request_ends_in_one_finish_record(rig: Rig) -> None:
    sampling = SamplingParams(temperature=0.8, seed=3)
    rig.engine.submit(request([5, 6, 7], 12, request_id="a", sampling=sampling, ignore_eos=True))
    finish = rig.ears.finish("a")
    assert (finish.reason, finish.token_count) == (FinishReason.LENGTH, 12)
    assert len(rig.ears.tokens("a")) == 12


def test_counters_agree_with_what_was_heard(rig: Rig) -> None:
    rig.engine.submit(request([5, 6, 7], 5, request_id="counted", ignore_eos=True))
    rig.ears.finish("counted")
    heard = sum(len(block.token_ids) for step in rig.ears.steps for block in step.blocks)
    stats = rig.engine.stats()
    assert stats.counters.emitted_tokens == heard
    assert (stats.running, stats.waiting, stats.pages_used) == (0, 0, 0)


def test_many_threads_may_submit_at_once(rig: Rig) -> None:
    names = [f"thread-{index}" for index in range(12)]

    def submit(name: str) -> None:
        rig.engine.submit(request([5, 6, 7], 4, request_id=name, ignore_eos=True))

    threads = [Thread(target=submit, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {rig.ears.finish(name).token_count for name in names} == {4}
    assert len({tuple(rig.ears.tokens(name)) for name in names}) == 1


def test_a_cancelled_request_still_ends_in_a_finish_record(rig: Rig) -> None:
    rig.engine.submit(request([5, 6, 7], 500, request_id="cancelled", ignore_eos=True))
    rig.engine.cancel("cancelled")
    rig.engine.cancel("cancelled")
    rig.engine.cancel("unknown")
    finish = rig.ears.finish("cancelled")
    assert finish.reason is FinishReason.CANCELLED
    assert finish.token_count == len(rig.ears.tokens("cancelled"))


def test_a_refusal_names_the_parameter(rig: Rig) -> None:
    with pytest.raises(PromptTooLong) as caught:
        rig.engine.submit(request([5], 512))
    assert caught.value.parameter == "max_tokens"
    with pytest.raises(InvalidRequest) as caught:
        rig.engine.submit(request([5], sampling=SamplingParams(temperature=float("nan"))))
    assert caught.value.parameter == "temperature"


def test_an_id_that_is_live_is_refused_and_the_live_one_goes_on(rig: Rig) -> None:
    rig.ears.block()  # the engine soon waits for its observer, so nothing finishes
    rig.engine.submit(request([5], 500, request_id="twice", ignore_eos=True))
    with pytest.raises(InvalidRequest, match="live already"):
        rig.engine.submit(request([5], request_id="twice"))
    rig.engine.cancel("twice")
    rig.ears.unblock()
    assert rig.ears.finish("twice").reason is FinishReason.CANCELLED


def test_a_slow_observer_loses_nothing_and_holds_no_answer_back(rig: Rig) -> None:
    rig.ears.block()
    rig.engine.submit(request([5, 6, 7], 400, request_id="slow", ignore_eos=True))
    rig.engine.stats()
    rig.ears.unblock()
    assert rig.ears.finish("slow").token_count == len(rig.ears.tokens("slow")) == 400


def test_the_info_says_what_runs(rig: Rig) -> None:
    info = rig.engine.info
    assert (info.model, info.architecture, info.device) == ("tiny", "llama", "cpu")
    assert info.checksum.startswith("sha256:")
    assert info.thread_count == 1


@IMPLEMENTATIONS
def test_closing_ends_live_requests_and_delivers_that(
    kind: type[EngineService | EngineProcess], model: Path
) -> None:
    ears = Ears()
    engine = kind(model, CONFIG, ears)
    assert not engine.available
    engine.start()
    assert engine.available
    for index in range(6):
        engine.submit(request([5, 6, 7], 500, request_id=f"r{index}", ignore_eos=True))
    ears.wait_for(lambda: any(step.blocks for step in ears.steps))
    engine.close()
    engine.close()
    assert not engine.available
    finishes = ears.finishes()
    assert len(finishes) == 6
    for name, finish in finishes.items():
        assert finish.reason is FinishReason.CANCELLED
        assert finish.token_count == len(ears.tokens(name))
    with pytest.raises(EngineUnavailable):
        engine.submit(request([5]))


@IMPLEMENTATIONS
def test_nothing_is_known_before_the_start(
    kind: type[EngineService | EngineProcess], model: Path
) -> None:
    engine = kind(model, CONFIG, Ears())
    for ask in (lambda: engine.info, engine.stats, lambda: engine.submit(request([5]))):
        with pytest.raises(EngineUnavailable):
            ask()
    engine.cancel("nobody")
    engine.close()


@IMPLEMENTATIONS
def test_what_keeps_the_engine_from_starting_is_raised_by_start(
    kind: type[EngineService | EngineProcess], model: Path, tmp_path: Path
) -> None:
    (tmp_path / "cut.dfm").write_bytes(model.read_bytes()[:-100])
    with pytest.raises(InvalidModelFile):
        kind(tmp_path / "cut.dfm", CONFIG, Ears()).start()
    with pytest.raises(InvalidConfig, match="rollback"):
        kind(model, msgspec.structs.replace(CONFIG, rollback="never"), Ears()).start()
