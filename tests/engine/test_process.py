"""The engine in a process of its own: the same door, and what happens when either side dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from engine_ears import PATIENCE_S, Ears
from engine_sequences import request
from tiny_models import write_tiny_dfm

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

CONFIG = EngineConfig(kv_tokens=512, threads=1, max_running=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dfm(tmp_path_factory.mktemp("models") / "tiny.dfm")


@pytest.fixture(scope="module")
def ears() -> Ears:
    return Ears()


@pytest.fixture(scope="module")
def engine(model: Path, ears: Ears) -> Iterator[EngineProcess]:
    engine = EngineProcess(model, CONFIG, ears)
    engine.start()
    yield engine
    engine.close()


def until(condition: object) -> None:
    """Wait for something that nobody announces."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up_at, "waited in vain"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_it_decodes_in_another_process_and_says_so(engine: EngineProcess, ears: Ears) -> None:
    sampling = SamplingParams(temperature=0.8, seed=3)
    engine.submit(request([5, 6, 7], 12, request_id="a", sampling=sampling, ignore_eos=True))
    assert ears.finish("a").token_count == 12
    assert engine.info.pid != os.getpid()
    assert alive(engine.info.pid)
    assert engine.stats().counters.emitted_tokens >= 12


def test_refusals_cross_the_border_with_their_parameter(engine: EngineProcess) -> None:
    with pytest.raises(PromptTooLong) as caught:
        engine.submit(request([5], 512))
    assert caught.value.parameter == "max_tokens"
    with pytest.raises(InvalidRequest) as caught:
        engine.submit(request([5], sampling=SamplingParams(temperature=float("nan"))))
    assert caught.value.parameter == "temperature"
    engine.submit(request([5], 500, request_id="twice", ignore_eos=True))
    with pytest.raises(InvalidRequest, match="live already"):
        engine.submit(request([5], request_id="twice"))


def test_a_cancellation_crosses_the_border(engine: EngineProcess, ears: Ears) -> None:
    engine.submit(request([5, 6, 7], 400, request_id="cancelled", ignore_eos=True))
    engine.cancel("cancelled")
    engine.cancel("unknown")
    assert ears.finish("cancelled").reason is FinishReason.CANCELLED


def test_a_child_that_dies_ends_its_requests_as_error_and_is_replaced(
    engine: EngineProcess, ears: Ears
) -> None:
    first = engine.info.pid
    engine.submit(request([5, 6, 7], 400, request_id="live", ignore_eos=True))
    ears.wait_for(lambda: len(ears.tokens("live")) > 3)
    os.kill(first, signal.SIGKILL)
    finish = ears.finish("live")
    assert (finish.reason, finish.detail) == (FinishReason.ERROR, "engine lost")
    assert finish.token_count == len(ears.tokens("live"))
    until(lambda: engine.info.pid != first)
    until(lambda: not refuses(engine))
    engine.submit(request([5, 6, 7], 3, request_id="next", ignore_eos=True))
    assert ears.finish("next").reason is FinishReason.LENGTH
    assert len({step.engine_epoch for step in ears.steps}) == 2


def refuses(engine: EngineProcess) -> bool:
    try:
        engine.stats()
    except EngineUnavailable:
        return True
    return False


def test_closing_delivers_finish_records_and_leaves_no_process(model: Path) -> None:
    ears = Ears()
    engine = EngineProcess(model, CONFIG, ears)
    engine.start()
    pid = engine.info.pid
    engine.submit(request([5, 6, 7], 400, request_id="a", ignore_eos=True))
    ears.wait_for(lambda: len(ears.tokens("a")) > 3)
    engine.close()
    engine.close()
    assert ears.finishes()["a"].reason is FinishReason.CANCELLED
    assert ears.finishes()["a"].token_count == len(ears.tokens("a"))
    assert not alive(pid)
    with pytest.raises(EngineUnavailable):
        engine.submit(request([5]))


def test_a_slow_observer_holds_the_engine_back_and_loses_nothing(
    engine: EngineProcess, ears: Ears
) -> None:
    ears.block()
    engine.submit(request([5, 6, 7], 400, request_id="slow", ignore_eos=True))
    engine.stats()  # answers are not held back
    ears.unblock()
    assert ears.finish("slow").token_count == len(ears.tokens("slow")) == 400


@pytest.mark.parametrize(
    ("damage", "error"), [("cut", InvalidModelFile), ("config", InvalidConfig)]
)
def test_what_keeps_the_child_from_starting_is_raised_here(
    model: Path, tmp_path: Path, damage: str, error: type[Exception]
) -> None:
    path, config = model, CONFIG
    if damage == "cut":
        path = tmp_path / "cut.dfm"
        path.write_bytes(model.read_bytes()[:-100])
    else:
        config = EngineConfig(rollback="never")
    with pytest.raises(error):
        EngineProcess(path, config, Ears()).start()


def test_the_engine_dies_with_its_gateway_even_by_sigkill(model: Path, tmp_path: Path) -> None:
    gateway = tmp_path / "gateway.py"
    gateway.write_text(
        textwrap.dedent(
            """
            import sys, time
            from engine.config import EngineConfig
            from engine.process import EngineProcess

            class Nobody:
                def on_steps(self, steps):
                    pass

            engine = EngineProcess(sys.argv[1], EngineConfig(kv_tokens=512, threads=1), Nobody())
            engine.start()
            print(engine.info.pid, "torch" in sys.modules, flush=True)
            time.sleep(600)
            """
        )
    )
    with subprocess.Popen(
        [sys.executable, str(gateway), str(model)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid, torch_imported = process.stdout.readline().split()
        assert torch_imported == "False"
        assert alive(int(pid))
        process.kill()
    until(lambda: not alive(int(pid)))
