"""Step records on their way to the observer: in order, in batches, on a thread of their own.

Where the observer shares its processors with the engine, each batch costs the engine time, and as
much for one step as for several. So the steps of a moment are gathered, but for those that someone
waits for: a request's first tokens and its end.

The queue is bounded: when the observer falls behind, whoever puts steps waits. An observer that
raises is handed the same steps again, so it must take a batch whole or not at all; one that goes on
raising for a minute is given up on.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread

import structlog

from engine.protocols import StepObserver
from engine.records import StepRecord

log = structlog.get_logger(__name__)

_BOUND = 256  # steps that may wait
_PATIENCE_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 2.0


def is_awaited(step: StepRecord) -> bool:
    """Whether somebody waits for what this step says: a request begins to answer, or ends."""
    return bool(step.finishes) or any(block.block_index == 0 for block in step.blocks)


class StepDelivery:
    """A bounded queue and the thread that empties it into an observer."""

    def __init__(
        self,
        observer: StepObserver,
        *,
        on_failure: Callable[[Exception], None],
        bound: int = _BOUND,
        gather_s: float = 0.0,
    ) -> None:
        """After a batch, steps that nobody waits for are gathered for up to `gather_s`."""
        self._observer = observer
        self._on_failure = on_failure
        self._bound = bound
        self._gather_s = gather_s
        self._hurry = False  # something that is queued must not wait
        self._idle = False  # the thread waits for a step
        self._rest_until_s = 0.0
        self._steps: deque[StepRecord] = deque()
        self._changed = Condition()
        self._closing = False
        self._failed = False
        self._thread = Thread(target=self._run, name="step-delivery", daemon=True)

    def start(self) -> None:
        """Begin delivering."""
        self._thread.start()

    def put(self, step: StepRecord) -> None:
        """Queue a step, waiting while the queue is full. Once delivery has failed, drops it."""
        with self._changed:
            while len(self._steps) >= self._bound and not self._failed:
                self._changed.wait()
            if self._failed:
                return
            self._steps.append(step)
            self._hurry = self._hurry or is_awaited(step) or len(self._steps) >= self._bound
            if self._hurry or self._idle:
                self._changed.notify_all()

    def close(self) -> None:
        """Deliver what is queued, then stop."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while batch := self._next():
            try:
                self._deliver(batch)
            except Exception as error:  # noqa: BLE001 -- reported to whoever can end requests
                with self._changed:
                    self._failed = True
                    self._steps.clear()
                    self._changed.notify_all()
                self._on_failure(error)
                return

    def _next(self) -> list[StepRecord]:
        """Take everything that is queued, waiting for something; empty when it is over."""
        with self._changed:
            self._idle = True
            while not self._steps and not self._closing:
                self._changed.wait()
            self._idle = False
            rest_s = self._rest_until_s - time.monotonic()
            if rest_s > 0:
                self._changed.wait_for(lambda: self._hurry or self._closing, rest_s)
            self._rest_until_s = time.monotonic() + self._gather_s
            batch = list(self._steps)
            self._steps.clear()
            self._hurry = False
            self._changed.notify_all()
            return batch

    def _deliver(self, batch: list[StepRecord]) -> None:
        give_up_at, pause_s = time.monotonic() + _PATIENCE_S, _FIRST_PAUSE_S
        while True:
            try:
                self._observer.on_steps(batch)
            except Exception:
                if time.monotonic() + pause_s > give_up_at:
                    raise
                log.exception("steps.delivery_failed", steps=len(batch), retry_in_s=pause_s)
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                return
