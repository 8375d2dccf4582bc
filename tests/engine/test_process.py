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
from typing import Any

import psutil
import pytest
from engine_ears import PATIENCE_S, Ears
from engine_sequences import request
from tiny_models import TinyShape, write_tiny_dfm

from engine.config import EngineConfig
from engine.errors import EngineUnavailable, InvalidRequest
from engine.process import EngineProcess
from engine.records import EngineInfo, FinishReason
from engine.requests import SamplingParams

# Room for an answer that takes seconds: what is killed in the middle of it has not ended by itself.
LONG = 16_384
CONFIG = EngineConfig(kv_tokens=LONG, threads=1, max_running=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = TinyShape(context_length=LONG)
    return write_tiny_dfm(tmp_path_factory.mktemp("models") / "tiny.dfm", shape)


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


def refuses(engine: EngineProcess) -> bool:
    try:
        engine.stats()
    except EngineUnavailable:
        return True
    return False


def test_it_runs_in_a_process_of_its_own_and_says_which(engine: EngineProcess) -> None:
    assert engine.info.pid != os.getpid()
    assert alive(engine.info.pid)


@pytest.mark.parametrize(
    "unsendable",
    [
        {"sampling": SamplingParams(top_k=2**64)},
        {"sampling": SamplingParams(seed=2**64)},
        {"max_tokens": 2**64},
        {"stop": ("\ud800",)},
    ],
)
def test_a_request_that_cannot_be_encoded_is_refused_and_leaves_nothing_behind(
    engine: EngineProcess, ears: Ears, unsendable: dict[str, Any]
) -> None:
    name = ascii(unsendable)
    with pytest.raises(InvalidRequest):
        engine.submit(request([5], request_id=name, **unsendable))
    engine.submit(request([5, 6], 2, request_id=name, ignore_eos=True))
    assert ears.finish(name).reason is FinishReason.LENGTH


def test_a_child_that_dies_ends_its_requests_as_error_and_is_replaced(
    engine: EngineProcess, ears: Ears
) -> None:
    first = engine.info.pid
    engine.submit(request([5, 6, 7], LONG - 3, request_id="live", ignore_eos=True))
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


def test_a_child_that_cannot_be_replaced_is_tried_again(
    engine: EngineProcess, ears: Ears, model: Path
) -> None:
    lost = engine.info.pid
    away = model.rename(model.with_suffix(".away"))
    os.kill(lost, signal.SIGKILL)
    until(lambda: refuses(engine))
    with pytest.raises(EngineUnavailable):
        engine.submit(request([5]))
    away.rename(model)
    until(lambda: not refuses(engine))
    assert engine.info.pid != lost
    engine.submit(request([5, 6, 7], 3, request_id="again", ignore_eos=True))
    assert ears.finish("again").reason is FinishReason.LENGTH


def test_a_child_that_nobody_takes_over_is_replaced_again(model: Path) -> None:
    """Given a database that is full just when the new child's meter is to be opened."""
    told: list[int] = []
    ears = Ears()

    def taken_over(info: EngineInfo) -> None:
        told.append(info.pid)
        if len(told) == 1:
            raise OSError("no space left on device")

    engine = EngineProcess(model, CONFIG, ears, on_replaced=taken_over)
    engine.start()
    try:
        os.kill(engine.info.pid, signal.SIGKILL)
        until(lambda: len(told) == 2)
        until(lambda: not refuses(engine))
        assert not alive(told[0])
        engine.submit(request([5, 6, 7], 3, request_id="next", ignore_eos=True))
        assert ears.finish("next").reason is FinishReason.LENGTH
    finally:
        engine.close()


def test_closing_leaves_no_process(engine: EngineProcess) -> None:
    pid = engine.info.pid
    engine.close()
    assert not alive(pid)
    with pytest.raises(EngineUnavailable):
        engine.submit(request([5]))


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
