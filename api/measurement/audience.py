"""Who watches a run: when each request's first token is seen, and which requests are over."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Condition

from engine.protocols import StepObserver
from engine.records import StepRecord
from metering.events import RequestSummary
from metering.protocols import CommittedBlock

WAIT_S = 120.0


@dataclass
class Audience:
    """Who waits for tokens: notes when each request's first one is seen, and which are over."""

    tokens: int = 0
    first_ns: dict[str, int] = field(default_factory=dict)
    over: set[str] = field(default_factory=set)
    last_ns: int = 0
    _changed: Condition = field(default_factory=Condition)

    def see(self, request_id: str, tokens: int) -> None:
        """Tokens of a request are shown."""
        self.last_ns = time.monotonic_ns()
        self.first_ns.setdefault(request_id, self.last_ns)
        self.tokens += tokens

    def end(self, request_ids: Sequence[str]) -> None:
        """The engine is done with these."""
        with self._changed:
            self.over.update(request_ids)
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        """Until so many are over; raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.over) >= count, WAIT_S):
                raise TimeoutError("the engine answers no more")


class Switch:
    """The engine's observer: hands steps to whoever observes the run in hand."""

    def __init__(self) -> None:
        self.observer: StepObserver | None = None
        self.audience = Audience()

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Pass the steps on, then say which requests are over."""
        if self.observer is not None:
            self.observer.on_steps(steps)
        else:
            for step in steps:
                for block in step.blocks:
                    self.audience.see(block.request_id, len(block.token_ids))
        self.audience.end([finish.request_id for step in steps for finish in step.finishes])


class Shown:
    """The sink of a run with the books."""

    def __init__(self, audience: Audience) -> None:
        self._audience = audience

    def shows_blocks(self, request_id: str) -> bool:
        """They are counted as they come."""
        return True

    def deliver(self, request_id: str, blocks: Sequence[CommittedBlock]) -> None:
        """Note what is durable and may be shown."""
        self._audience.see(request_id, sum(len(block.token_ids) for block in blocks))

    def finish(self, summary: RequestSummary) -> None:
        """A run is over before its last receipt: nobody waits here for those."""

    def defer(self, request_id: str) -> None:
        """Nor for those that come late."""
