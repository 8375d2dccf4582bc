"""What the engine calls and others implement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.records import StepRecord


class StepObserver(Protocol):
    """Hears of every step, in order, on one thread. Implemented by `metering.recorder`.

    A step that the observer has not returned from is not yet visible to any client: whoever
    streams tokens does so from the observer.
    """

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Take consecutive steps. Called off the decode loop; slowness delays only streams.

        If it raises it is handed the same steps again, so that steps seen before change nothing.
        """
