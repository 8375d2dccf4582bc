"""Steps that nobody waits for are gathered; the first and the last of a request never are."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import pytest
from engine_ears import Ears

from engine.delivery import StepDelivery, is_awaited
from engine.records import BlockRecord, FinishReason, FinishRecord, StepRecord

NEVER_S = 600.0  # gathered until something hurries


def step(index: int, *, block: int = 1, ends: bool = False) -> StepRecord:
    blocks = (BlockRecord("r", block, (1,), (b"a",), (0.0,), (0.0,)),)
    finishes = (FinishRecord("r", FinishReason.STOP, 2, 2),) if ends else ()
    return StepRecord("e", index, 0, 0, blocks=blocks, finishes=finishes)


class Batches(Ears):
    """Keeps the size of each batch."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self.heard = Event()

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        super().on_steps(steps)
        self.sizes.append(len(steps))
        self.heard.set()

    def wait(self) -> None:
        assert self.heard.wait(30)
        self.heard.clear()


@pytest.mark.parametrize(
    ("hurried", "awaited"),
    [(step(9, block=0), True), (step(9, ends=True), True), (step(9), False)],
)
def test_a_request_that_begins_or_ends_is_waited_for(hurried: StepRecord, awaited: bool) -> None:
    assert is_awaited(hurried) is awaited


@pytest.mark.parametrize("hurried", [step(9, block=0), step(9, ends=True)])
def test_what_somebody_waits_for_takes_what_was_gathered_with_it(hurried: StepRecord) -> None:
    ears = Batches()
    delivering = StepDelivery(ears, on_failure=lambda _: None, gather_s=NEVER_S)
    delivering.start()
    delivering.put(step(0))  # nothing was delivered a moment ago: it goes at once
    ears.wait()
    for index in range(1, 9):
        delivering.put(step(index))
    delivering.put(hurried)
    ears.wait()
    delivering.put(step(10))
    delivering.close()
    assert ears.sizes == [1, 9, 1]
    assert [heard.step_index for heard in ears.steps] == list(range(11))


def test_a_full_queue_is_not_gathered_further() -> None:
    ears = Batches()
    delivering = StepDelivery(ears, on_failure=lambda _: None, bound=4, gather_s=NEVER_S)
    delivering.start()
    delivering.put(step(0))
    ears.wait()
    for index in range(1, 5):
        delivering.put(step(index))
    ears.wait()
    delivering.close()
    assert ears.sizes == [1, 4]


def test_a_moment_later_gathered_steps_go_by_themselves() -> None:
    ears = Batches()
    delivering = StepDelivery(ears, on_failure=lambda _: None, gather_s=0.05)
    delivering.start()
    delivering.put(step(0))
    ears.wait()
    delivering.put(step(1))
    ears.wait()
    delivering.close()
    assert [heard.step_index for heard in ears.steps] == [0, 1]
