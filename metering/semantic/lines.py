"""Text of no declared language: every line that isn't blank is a unit."""

from __future__ import annotations

import re

from metering.semantic.scanner import Scanner
from metering.semantic.sentences import SPACES
from metering.semantic.tiling import Tiling

_PLAIN = re.compile(r"[^\n\x80-\U0010ffff]+")


class Lines(Scanner):
    """The scanner of fenced text that no other scanner knows."""

    __slots__ = ()

    def step(self, tiling: Tiling, char: str, at: int) -> Scanner:
        """Take one character."""
        if char == "\n":
            if tiling.is_open:
                tiling.close()
        elif not tiling.is_open and char not in SPACES:
            tiling.begin("line", at)
        return self

    def pass_over(self, tiling: Tiling, text: str, first: int) -> int:
        """The rest of a line that has begun."""
        plain = _PLAIN.match(text, first) if tiling.is_open else None
        return first if plain is None else plain.end()

    def finish(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """A text that stopped ends its line; one that was cut leaves it open."""
        if stopped and tiling.is_open:
            tiling.close()

    def copy(self) -> Lines:
        """Itself: it has no state."""
        return self
