"""Whether drafting pays, judged over windows, and turning it off where it does not.

    on --- a window is judged bad ---> off --- after a pause ---> probing --- judged ---> on | off

A window is so many drafted blocks. Its hit rate is accepted tokens per drafted depth; its speedup
is what plain decoding would have taken for the same tokens, by the profiled cost of its rows, over
what drafting and verifying took. Off is off: nothing is drafted, looked up or learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import structlog

log = structlog.get_logger(__name__)

LEAST_HIT_RATE = 0.70
_WINDOW = 256  # drafted blocks
_PROBE = 64
_PAUSE = 2048  # steps that decode


class DegradePolicy(StrEnum):
    """When to decode without drafts."""

    HIT_RATE = "hit_rate"  # when the hit rate falls below 0.70
    SPEEDUP = "speedup"  # when it no longer pays
    NEVER = "never"


class Drafting(StrEnum):
    """Whether drafts are made."""

    ON = "on"
    OFF = "off"
    PROBING = "probing"


@dataclass(slots=True)
class Window:
    """What some steps drafted, and what they took."""

    blocks: int = 0  # drafted ones
    depth: int = 0
    accepted: int = 0
    plain_ms: float = 0.0  # what the same tokens would have taken
    spent_ms: float = 0.0

    def add(self, other: Window) -> None:
        """Take in a step's share."""
        self.blocks += other.blocks
        self.depth += other.depth
        self.accepted += other.accepted
        self.plain_ms += other.plain_ms
        self.spent_ms += other.spent_ms

    @property
    def hit_rate(self) -> float | None:
        """Accepted tokens per drafted depth; null when nothing was drafted."""
        return self.accepted / self.depth if self.depth else None

    @property
    def speedup(self) -> float | None:
        """Over plain decoding; null before the first step."""
        return self.plain_ms / self.spent_ms if self.spent_ms else None


class Degradation:
    """The state of one model's drafting."""

    def __init__(self, policy: str) -> None:
        self.state = Drafting.ON
        self.judged: Window | None = None  # the last full window
        self._policy = DegradePolicy(policy)
        self._window = Window()
        self._paused = 0

    @property
    def drafting(self) -> bool:
        """Whether the next step may draft."""
        return self.state is not Drafting.OFF

    @property
    def alert(self) -> bool:
        """Whether the last window's hit rate was below 0.70."""
        rate = self.judged.hit_rate if self.judged else None
        return rate is not None and rate < LEAST_HIT_RATE

    def take(self, step: Window) -> None:
        """Learn what a step that decoded has drafted, and decide about the next one."""
        if self.state is Drafting.OFF:
            self._paused += 1
            if self._paused == _PAUSE:
                self._enter(Drafting.PROBING)
            return
        self._window.add(step)
        if self._window.blocks >= (_WINDOW if self.state is Drafting.ON else _PROBE):
            self._judge()

    def _judge(self) -> None:
        had_alert = self.alert
        self.judged = self._window
        hit_rate, speedup = self.judged.hit_rate, self.judged.speedup
        if self.alert and not had_alert:
            log.warning("draft.hit_rate_low", hit_rate=hit_rate, speedup=speedup)
        pays = {
            DegradePolicy.HIT_RATE: not self.alert,
            DegradePolicy.SPEEDUP: speedup is None or speedup >= 1.0,
            DegradePolicy.NEVER: True,
        }[self._policy]
        self._enter(Drafting.ON if pays else Drafting.OFF)

    def _enter(self, state: Drafting) -> None:
        if state is not self.state:
            log.info("draft.state", state=state.value, policy=self._policy.value)
        self.state, self._window, self._paused = state, Window(), 0
