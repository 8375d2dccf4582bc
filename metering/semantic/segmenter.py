"""The segmenter: bytes in, semantic units out, each once and for good.

The same bytes give the same units however they were chunked: characters are handed on one at a
time, and nothing is decided by what arrived together. Bytes that are no UTF-8 count as one
character each, of no class.
"""

from __future__ import annotations

import codecs

from metering.semantic.markdown import Markdown
from metering.semantic.scanner import Scanner, width
from metering.semantic.tiling import Tiling
from metering.semantic.units import OPEN_BYTES_MAX, Unit

_DECODER = codecs.getincrementaldecoder("utf-8")


class Segmenter:
    """Finds the units of one output while it is written."""

    __slots__ = ("_at", "_decoder", "_scanner", "_tiling")

    def __init__(self) -> None:
        self._decoder = _DECODER("surrogateescape")
        self._tiling = Tiling()
        self._scanner: Scanner = Markdown(at_start=True)
        self._at = 0  # bytes handed on

    def feed(self, data: bytes) -> list[Unit]:
        """Take the next bytes; returns the units that closed with them."""
        self._read(self._decoder.decode(data))
        return self._tiling.take()

    def finish(self, *, stopped: bool = False) -> list[Unit]:
        """End the text; returns the units not returned before.

        `stopped`: it ended of itself, so its last line is whole as if a newline followed.
        Otherwise it was cut there, and what isn't closed by then is a fragment.
        """
        self._read(self._decoder.decode(b"", final=True))
        self._scanner.finish(self._tiling, self._at, stopped=stopped)
        self._tiling.finish(self._at)
        return self._tiling.take()

    def open_units(self, *, stopped: bool = False) -> list[Unit]:
        """What `finish` would return here. Changes nothing."""
        return self.copy().finish(stopped=stopped)

    def copy(self) -> Segmenter:
        """An independent segmenter in the same state; costs as much as the open text is long."""
        twin = Segmenter()
        twin._decoder.setstate(self._decoder.getstate())
        twin._tiling = self._tiling.copy()
        twin._scanner = self._scanner.copy()
        twin._at = self._at
        return twin

    def _read(self, text: str) -> None:
        tiling, scanner, at = self._tiling, self._scanner, self._at
        for char in text:
            if at - tiling.start >= OPEN_BYTES_MAX:
                tiling.limit(at)
            scanner = scanner.step(tiling, char, at)
            at += width(char)
        self._scanner, self._at = scanner, at
