"""Step records reach the observer in order, once, and are not lost when it stumbles."""

from __future__ import annotations

from threading import Event, Thread

import pytest
from engine_ears import Ears

from engine import delivery
from engine.delivery import StepDelivery
from engine.records import StepRecord


def step(index: int) -> StepRecord:
    return StepRecord(engine_epoch="e", step_index=index, start_ns=0, end_ns=0)


def opened(ears: Ears, bound: int = 4) -> tuple[StepDelivery, list[Exception]]:
    failures: list[Exception] = []
    opened = StepDelivery(ears, on_failure=failures.append, bound=bound)
    opened.start()
    return opened, failures


def test_everything_is_delivered_in_order_before_close_returns() -> None:
    ears = Ears()
    delivering, failures = opened(ears)
    for index in range(50):
        delivering.put(step(index))
    delivering.close()
    delivering.close()
    assert [heard.step_index for heard in ears.steps] == list(range(50))
    assert failures == []


def test_a_slow_observer_makes_the_engine_wait() -> None:
    ears = Ears()
    ears.block()
    delivering, _ = opened(ears, bound=2)
    done = Event()

    def put_all() -> None:
        for index in range(20):
            delivering.put(step(index))
        done.set()

    putting = Thread(target=put_all)
    putting.start()
    assert not done.wait(0.1)
    ears.unblock()
    assert done.wait(30)
    putting.join()
    delivering.close()
    assert len(ears.steps) == 20


def test_an_observer_that_stumbles_is_handed_the_same_steps_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "_FIRST_PAUSE_S", 0.001)
    ears = Ears()
    ears.raise_next = [RuntimeError("database is locked"), RuntimeError("still locked")]
    delivering, failures = opened(ears)
    delivering.put(step(0))
    delivering.close()
    assert [heard.step_index for heard in ears.steps] == [0]
    assert failures == []


def test_an_observer_that_never_recovers_is_given_up_and_nobody_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "_PATIENCE_S", 0.0)
    ears = Ears()
    ears.raise_next = [RuntimeError("disk full")]
    delivering, failures = opened(ears, bound=1)
    for index in range(10):
        delivering.put(step(index))
    delivering.close()
    assert [str(error) for error in failures] == ["disk full"]
    assert ears.steps == []
