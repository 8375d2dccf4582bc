"""What a scanner of one language does. A segmenter hands characters to one scanner at a time."""

from __future__ import annotations

from typing import Protocol

from metering.semantic.tiling import Tiling


class Scanner(Protocol):
    """Reads characters in order and tells the tiling where content begins and closes.

    Scanners never look back at text that they have seen, nor ahead: what they report depends on
    the characters alone, so it cannot depend on how these were chunked.
    """

    __slots__ = ()

    def step(self, tiling: Tiling, char: str, at: int) -> Scanner:
        """Take the character at byte offset `at`; returns who reads the next one."""

    def pass_over(self, tiling: Tiling, text: str, first: int) -> int:
        """Take characters from `first` on that begin and close nothing; returns where they end.

        Exactly as if `step` had taken each: a shortcut, and none unless a scanner has one. They
        are a byte each, and none of them ends a line.
        """
        return first

    def finish(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """The text ends before byte `at`. `stopped`: of itself; otherwise it was cut there."""

    def copy(self) -> Scanner:
        """An independent scanner in the same state."""


def width(char: str) -> int:
    """Bytes of a character in the text; one for an escaped byte that is no UTF-8."""
    if char < "\x80":
        return 1
    if char < "\u0800":
        return 2
    if char < "\U00010000":
        return 1 if "\udc80" <= char <= "\udcff" else 3
    return 4
