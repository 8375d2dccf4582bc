"""An observer that remembers, and waits for what a test wants to hear."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Condition

from engine.records import FinishRecord, StepRecord

PATIENCE_S = 60.0


class Ears:
    """Hears steps, checks that they come in order, and can be made slow or deaf."""

    def __init__(self) -> None:
        self.steps: list[StepRecord] = []
        self.batches = 0
        self.raise_next: list[Exception] = []
        self._changed = Condition()
        self._blocked = False

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._blocked, PATIENCE_S)
            if self.raise_next:
                raise self.raise_next.pop(0)
            self.batches += 1
            for step in steps:
                before = [old for old in self.steps if old.engine_epoch == step.engine_epoch]
                assert step.step_index == len(before)
                self.steps.append(step)
            self._changed.notify_all()

    def block(self) -> None:
        """Let nothing through until `unblock`."""
        with self._changed:
            self._blocked = True

    def unblock(self) -> None:
        with self._changed:
            self._blocked = False
            self._changed.notify_all()

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition on what was heard holds."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_S), "waited in vain"

    def tokens(self, request_id: str) -> list[int]:
        """Everything emitted for a request so far."""
        blocks = [block for step in self.steps for block in step.blocks]
        return [t for block in blocks if block.request_id == request_id for t in block.token_ids]

    def finishes(self) -> dict[str, FinishRecord]:
        """The finish records so far; one a request."""
        records = [finish for step in self.steps for finish in step.finishes]
        assert len({record.request_id for record in records}) == len(records)
        return {record.request_id: record for record in records}

    def finish(self, request_id: str) -> FinishRecord:
        """Wait for a request's end."""
        self.wait_for(lambda: request_id in self.finishes())
        return self.finishes()[request_id]
