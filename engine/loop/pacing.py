"""Who lets another go ahead: of requests at one place of one text, one moves and the rest follow.

Sixteen sampled answers that agree so far would each draw their next token in the same step, and
none could be drafted from what another said. So the first goes ahead; a step later the others
verify what it said, and what it says next is drafted for all of them at once. Nobody waits twice
in a row, and nothing here decides what is emitted.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.draft.drafter import Draft, DraftSession, Place
from engine.draft.proposals import Source
from engine.scheduler.plan import Turn
from engine.scheduler.sequence import Sequence as LiveSequence


class Pacing:
    """One step's decisions."""

    def __init__(self) -> None:
        self.held: set[LiveSequence] = set()  # who sits this step out
        self._places: set[Place] = set()

    def waits(
        self, turn: Turn, session: DraftSession, recent: Sequence[int], draft: Draft | None
    ) -> bool:
        """Decide whether a turn waits, given the draft it would have now."""
        place, sequence = session.place(recent), turn.sequence
        if place is None:
            return False
        if place not in self._places:
            self._places.add(place)
            return False
        if draft is not None and draft.drawn_from(Source.SHARED):
            return False
        if turn.rows > 1 or sequence.held_at == len(sequence.tokens):
            return False
        sequence.held_at = len(sequence.tokens)
        self.held.add(sequence)
        return True
