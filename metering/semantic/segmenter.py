"""The segmenter: bytes in, semantic units out, each once and for good.

The same bytes give the same units however they were chunked: characters are handed on one at a
time, or passed over as if they had been, and nothing is decided by what arrived together. Bytes
that are no UTF-8 count as one character each, of no class.
"""

from __future__ import annotations

import codecs

from metering.semantic.markdown import Markdown
from metering.semantic.scanner import Scanner, width
from metering.semantic.tiling import Tiling
from metering.semantic.units import OPEN_BYTES_MAX, Unit


class Segmenter:
    """Finds the units of one output while it is written."""

    __slots__ = ("_at", "_scanner", "_tail", "_tiling")

    def __init__(self) -> None:
        self._tail = b""  # of a character that is unfinished
        self._tiling = Tiling()
        self._scanner: Scanner = Markdown(at_start=True)
        self._at = 0  # bytes handed on

    def feed(self, data: bytes) -> list[Unit]:
        """Take the next bytes; returns the units that closed with them."""
        self._read(self._decode(data))
        return self._tiling.take()

    def finish(self, *, stopped: bool = False) -> list[Unit]:
        """End the text; returns the units not returned before.

        `stopped`: it ended of itself, so its last line is whole as if a newline followed.
        Otherwise it was cut there, and what isn't closed by then is a fragment.
        """
        self._read(self._decode(b"", final=True))
        self._scanner.finish(self._tiling, self._at, stopped=stopped)
        self._tiling.finish(self._at)
        return self._tiling.take()

    def open_units(self, *, stopped: bool = False) -> list[Unit]:
        """What `finish` would return here. Changes nothing."""
        return self.copy().finish(stopped=stopped)

    def copy(self) -> Segmenter:
        """An independent segmenter in the same state; costs as much as the open text is long."""
        twin = Segmenter.__new__(Segmenter)
        twin._tail, twin._at = self._tail, self._at
        twin._tiling = self._tiling.copy()
        twin._scanner = self._scanner.copy()
        return twin

    def _decode(self, data: bytes, *, final: bool = False) -> str:
        """The characters that became complete."""
        data = self._tail + data
        text, used = codecs.utf_8_decode(data, "surrogateescape", final)
        self._tail = data[used:]
        return text

    def _read(self, text: str) -> None:
        tiling, scanner, at = self._tiling, self._scanner, self._at
        may_be_long = at + 4 * len(text) - tiling.start >= OPEN_BYTES_MAX  # units only begin later
        place = 0
        while place < len(text):
            if may_be_long:
                if at - tiling.start >= OPEN_BYTES_MAX:
                    tiling.limit(at)
            else:
                passed = scanner.pass_over(tiling, text, place) - place
                at += passed
                place += passed
                if place == len(text):
                    break
            char = text[place]
            place += 1
            scanner = scanner.step(tiling, char, at)
            at += 1 if char < "\x80" else width(char)
        self._scanner, self._at = scanner, at
