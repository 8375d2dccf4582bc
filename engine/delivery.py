"""Step records on their way to the observer: in order, in batches, on a thread of their own.

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


class StepDelivery:
    """A bounded queue and the thread that empties it into an observer."""

    def __init__(
        self,
        observer: StepObserver,
        *,
        on_failure: Callable[[Exception], None],
        bound: int = _BOUND,
    ) -> None:
        self._observer = observer
        self._on_failure = on_failure
        self._bound = bound
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
            if not self._failed:
                self._steps.append(step)
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
            while not self._steps and not self._closing:
                self._changed.wait()
            batch = list(self._steps)
            self._steps.clear()
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
