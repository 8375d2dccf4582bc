"""The tiling of a text by units: every byte belongs to exactly one.

        begin          close                begin
          v              v                    v
    ......[== content ===][= separators =====][== content ...
    ^ leading separators   belong to the       emits the unit before it,
      belong to the first  unit before them    with its separators

A unit that has closed is held back until the next content begins or the text ends, because only
then is it known where it ends. Once emitted it is never touched again.
"""

from __future__ import annotations

from metering.events import UnitState
from metering.semantic.units import Unit

OVERSIZE = "oversize"
BLANK = "blank"


class Tiling:
    """Collects units as a scanner finds where content begins and closes."""

    __slots__ = ("emitted", "kind", "start", "state")

    def __init__(self) -> None:
        self.start = 0  # of the unit that is open or held back
        self.kind: str | None = None  # null: nothing but separators so far
        self.state: UnitState | None = None  # set once its content has closed
        self.emitted: list[Unit] = []

    @property
    def is_open(self) -> bool:
        """Whether content has begun that has not closed."""
        return self.kind is not None and self.state is None

    def begin(self, kind: str, at: int) -> None:
        """Content begins at a byte offset; what was closed before it is emitted.

        Content that is still open is closed as a fragment: whoever begins has given up on it.
        """
        if self.kind is not None:
            self._emit(self.kind, self.state or UnitState.FRAGMENT, at)
        self.kind = kind
        self.state = None

    def close(self, state: UnitState = UnitState.COMPLETE, kind: str | None = None) -> None:
        """The open content closes, as `kind` if it is only known by now what it is.

        The rest of an oversize piece is no complete clause, whatever its scanner says.
        """
        if self.kind == OVERSIZE:
            state = UnitState.FRAGMENT
        elif kind is not None:
            self.kind = kind
        self.state = state

    def withdraw(self) -> None:
        """Forget the beginning of the open content: a scanner found that it isn't what it reads.

        What was emitted stays; the content's bytes count as separators until something begins.
        """
        self.kind = None

    def limit(self, at: int) -> None:
        """The unit has reached its limit here: if it is still open, cut it."""
        if self.is_open:
            self._emit(OVERSIZE, UnitState.FRAGMENT, at)
            self.kind = OVERSIZE

    def finish(self, at: int) -> None:
        """The text ends here: emit what is open, held back, or blank."""
        if self.kind is not None:
            self._emit(self.kind, self.state or UnitState.FRAGMENT, at)
        elif at > self.start:
            self._emit(BLANK, UnitState.FRAGMENT, at)
        self.kind = None

    def take(self) -> list[Unit]:
        """Hand over the units emitted since the last call."""
        taken, self.emitted = self.emitted, []
        return taken

    def copy(self) -> Tiling:
        """An independent tiling in the same state."""
        twin = Tiling.__new__(Tiling)
        twin.start, twin.kind, twin.state = self.start, self.kind, self.state
        twin.emitted = self.emitted[:]
        return twin

    def _emit(self, kind: str, state: UnitState, end: int) -> None:
        """Emit what ends here. What a scanner held back may lie before a cut: it stays there."""
        if end > self.start:
            self.emitted.append(Unit(kind, state, self.start, end))
            self.start = end
