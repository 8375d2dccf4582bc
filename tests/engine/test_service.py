"""The engine in this process: what is taken ends in one finish record, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from engine_ears import Ears
from engine_sequences import request
from tiny_models import write_tiny_dfm

from engine.config import EngineConfig
from engine.errors import (
    EngineOverloaded,
    EngineUnavailable,
    InvalidConfig,
    InvalidRequest,
)
from engine.records import FinishReason
from engine.service import EngineService

CONFIG = EngineConfig(kv_tokens=512, threads=1, max_running=4, max_waiting=8)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dfm(tmp_path_factory.mktemp("models") / "tiny.dfm")


@pytest.fixture
def ears() -> Ears:
    return Ears()


@pytest.fixture
def service(model: Path, ears: Ears) -> Iterator[EngineService]:
    service = EngineService(model, CONFIG, ears)
    service.start()
    yield service
    ears.unblock()
    service.close()


def test_the_door_closes_when_the_engine_is_full_and_opens_again(
    service: EngineService, ears: Ears
) -> None:
    ears.block()  # the engine soon waits for its observer, so nothing finishes
    names = [f"r{index}" for index in range(12)]
    for name in names:
        service.submit(request([5, 6, 7], 400, request_id=name, ignore_eos=True))
    with pytest.raises(InvalidRequest, match="live already"):
        service.submit(request([5], request_id="r0"))
    with pytest.raises(EngineOverloaded):
        service.submit(request([5], request_id="surplus"))
    for name in names:
        service.cancel(name)
    ears.unblock()
    for name in names:
        assert ears.finish(name).reason is FinishReason.CANCELLED
    service.submit(request([5], 2, request_id="late", ignore_eos=True))
    assert ears.finish("late").reason is FinishReason.LENGTH


def test_a_loop_that_breaks_ends_everybody_as_error_and_closes_the_door(
    model: Path, ears: Ears, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[bool] = []
    service = EngineService(model, CONFIG, ears, on_failure=lambda: failed.append(True))
    monkeypatch.setattr("engine.scheduler.scheduler.Scheduler.plan", lambda _: 1 / 0, raising=True)
    service.start()
    service.submit(request([5, 6, 7], 40, request_id="a"))
    finish = ears.finish("a")
    assert (finish.reason, finish.detail) == (FinishReason.ERROR, "the engine failed")
    service.close()
    assert failed == [True]
    with pytest.raises(EngineUnavailable, match="failed"):
        service.submit(request([5]))


def test_an_observer_that_is_lost_for_good_stops_the_engine(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.delivery._PATIENCE_S", 0.0)
    ears = Ears()
    ears.raise_next = [RuntimeError("gone")]
    failed: list[bool] = []
    service = EngineService(model, CONFIG, ears, on_failure=lambda: failed.append(True))
    service.start()
    service.submit(request([5, 6, 7], 400, request_id="a", ignore_eos=True))
    service._thread.join(60)
    assert failed == [True]
    with pytest.raises(EngineUnavailable):
        service.submit(request([5]))
    service.close()


def test_parameters_that_no_engine_can_run_are_named_by_start(model: Path, ears: Ears) -> None:
    for changes in (
        {"rollback": "never"},
        {"node_budget": 0},
        {"longest_token_length": 256},
        {"entropy_threshold": float("nan")},
        {"max_waiting": -1},
    ):
        config = msgspec.structs.replace(CONFIG, **changes)
        with pytest.raises(InvalidConfig, match=next(iter(changes))):
            EngineService(model, config, ears).start()
