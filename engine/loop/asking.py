"""Whether to ask for drafts at all, at the load there is: asking takes time even if nothing comes.

For each size of load there is an account that forgets: what the steps that asked took, and what
plain steps would have taken for the same tokens. Where asking comes out behind, nothing is asked
for a while, twice as long each time; then it is tried again, and given up again within a few steps.
So a load at which drafts never pay costs those few steps, and one at which they do loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

_MEMORY = 64.0  # drafted blocks after which two thirds of a sum are forgotten
_TRIAL = 16.0  # blocks at par that every trial begins with
_LEAST = 0.99  # plain time over time spent, below which it does not pay
_PAUSE, _LONGEST_PAUSE = 8, 512  # steps


@dataclass(slots=True)
class _Load:
    """The sums of one size of load."""

    pause: int  # the next one's length
    blocks: float = 0.0  # of this trial
    plain_ms: float = 0.0
    spent_ms: float = 0.0
    waiting: int = 0  # steps left of this one


class Asking:
    """The verdicts so far. Loads within a factor of two count as one."""

    def __init__(self) -> None:
        self._loads: dict[int, _Load] = {}

    def pays(self, draws: int) -> bool:
        """Whether a step that draws for so many requests should ask. Counts those that don't."""
        load = self._load(draws)
        if load.waiting == 0:
            return True
        load.waiting -= 1
        return False

    def take(self, draws: int, plain_ms: float, spent_ms: float) -> None:
        """Learn from a step that asked, and decide about the next ones at its load."""
        load = self._load(draws)
        if load.blocks == 0.0:
            load.plain_ms = load.spent_ms = plain_ms * _TRIAL / draws
        kept = max(0.0, 1.0 - draws / _MEMORY)
        load.plain_ms = kept * load.plain_ms + plain_ms
        load.spent_ms = kept * load.spent_ms + spent_ms
        load.blocks += draws
        if load.plain_ms < _LEAST * load.spent_ms:
            load.waiting, load.blocks = load.pause, 0.0
            load.pause = min(2 * load.pause, _LONGEST_PAUSE)
        elif load.blocks >= _MEMORY:
            load.pause = _first_pause(draws)

    def _load(self, draws: int) -> _Load:
        load = self._loads.get(draws.bit_length())
        if load is None:
            load = self._loads[draws.bit_length()] = _Load(_first_pause(draws))
        return load


def _first_pause(draws: int) -> int:
    """The more requests a step asks for, the more it tells, and the more it costs to ask again."""
    return min(_PAUSE * max(1, draws // 2), _LONGEST_PAUSE)
