"""What one step will do, decided before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

from engine.scheduler.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Turn:
    """One sequence's part in a step: its next `rows` pending tokens."""

    sequence: Sequence
    rows: int

    @property
    def draws(self) -> bool:
        """Whether the rows reach the last token, so that a token is drawn (and may be drafted)."""
        return self.rows == self.sequence.pending


@dataclass(frozen=True, slots=True)
class Plan:
    """The turns of a step, and the rows left over for drafted nodes."""

    turns: tuple[Turn, ...]
    spare_rows: int
    copies: tuple[tuple[int, int], ...] = ()  # slots to copy in one move before the step, from, to

    def drafters(self) -> list[Turn]:
        """Return the turns that may carry a draft, those who waited longest for one first."""
        able = [
            turn
            for turn in self.turns
            if turn.draws and turn.sequence.request.draft and turn.sequence.remaining > 1
        ]
        return sorted(able, key=lambda turn: (turn.sequence.drafted_at, turn.sequence.arrival))
