"""The engine in this process: what is taken ends in one finish record, whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread

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
    InvalidModelFile,
    InvalidRequest,
    PromptTooLong,
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


def test_a_request_is_decoded_and_ends_in_one_finish_record(
    service: EngineService, ears: Ears
) -> None:
    service.submit(request([5, 6, 7], 12, request_id="a", ignore_eos=True))
    finish = ears.finish("a")
    assert (finish.reason, finish.token_count) == (FinishReason.LENGTH, 12)
    assert len(ears.tokens("a")) == 12
    assert service.stats().counters.emitted_tokens == 12


def test_many_threads_may_submit_at_once(service: EngineService, ears: Ears) -> None:
    names = [f"r{index}" for index in range(12)]

    def submit(name: str) -> None:
        service.submit(request([5, 6, 7], 4, request_id=name, ignore_eos=True))

    threads = [Thread(target=submit, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {ears.finish(name).token_count for name in names} == {4}
    assert len({tuple(ears.tokens(name)) for name in names}) == 1


def test_a_request_cancelled_at_once_still_ends_in_a_finish_record(
    service: EngineService, ears: Ears
) -> None:
    service.submit(request([5, 6, 7], 400, request_id="a", ignore_eos=True))
    service.cancel("a")
    service.cancel("a")
    service.cancel("unknown")
    assert ears.finish("a").reason is FinishReason.CANCELLED


def test_what_cannot_run_is_refused_at_the_door(service: EngineService) -> None:
    with pytest.raises(InvalidRequest):
        service.submit(request([]))
    with pytest.raises(PromptTooLong):
        service.submit(request([5], 512))


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


def test_closing_ends_live_requests_as_cancelled_and_delivers_that(model: Path, ears: Ears) -> None:
    service = EngineService(model, CONFIG, ears)
    service.start()
    for index in range(6):
        service.submit(request([5, 6, 7], 400, request_id=f"r{index}", ignore_eos=True))
    ears.wait_for(lambda: any(step.blocks for step in ears.steps))
    service.close()
    service.close()
    finishes = ears.finishes()
    assert {finish.reason for finish in finishes.values()} == {FinishReason.CANCELLED}
    assert len(finishes) == 6
    for name, finish in finishes.items():
        assert finish.token_count == len(ears.tokens(name))
    with pytest.raises(EngineUnavailable):
        service.submit(request([5]))


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


def test_the_info_says_what_runs(service: EngineService) -> None:
    info = service.info
    assert (info.model, info.architecture, info.device) == ("tiny", "llama", "cpu")
    assert info.checksum.startswith("sha256:")
    assert info.thread_count == 1


def test_nothing_is_known_before_the_start(model: Path, ears: Ears) -> None:
    service = EngineService(model, CONFIG, ears)
    for ask in (lambda: service.info, service.stats, lambda: service.submit(request([5]))):
        with pytest.raises(EngineUnavailable):
            ask()
    service.close()


def test_a_broken_model_or_config_is_reported_by_start(
    model: Path, tmp_path: Path, ears: Ears
) -> None:
    (tmp_path / "cut.dfm").write_bytes(model.read_bytes()[:2000])
    with pytest.raises(InvalidModelFile):
        EngineService(tmp_path / "cut.dfm", CONFIG, ears).start()
    for changes in (
        {"rollback": "never"},
        {"node_budget": 0},
        {"longest_token_length": 256},
        {"longest_token_length": 700},
        {"entropy_threshold": float("nan")},
        {"max_waiting": -1},
    ):
        config = msgspec.structs.replace(CONFIG, **changes)
        with pytest.raises(InvalidConfig, match=next(iter(changes))):
            EngineService(model, config, ears).start()
