"""Hiding from a reviewer what points at a person, and putting it back into a correction. Pure.

E-mail addresses, card numbers, bank accounts, telephone numbers, network addresses and secrets
become `[email 1]`, `[card 1]` and so on; the same text becomes the same mark everywhere in an item.
Names and street addresses have no form that could be told from other words, and stay.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from billing import telling_forms

_MARK = re.compile(r"\[[a-z]{4,7} \d{1,6}\]")


@dataclass(frozen=True, slots=True)
class Redacted:
    """A text with marks in the place of what it hides."""

    text: str
    # Where a mark stands instead of hidden bytes, in UTF-8: (from, to) of the original and of this.
    _spans: tuple[tuple[int, int, int, int], ...]

    def moved(self, at: int) -> int:
        """Where a byte of the original is here; one that is hidden moves behind its mark."""
        index = bisect_right(self._spans, at, key=lambda span: span[0]) - 1
        if index < 0:
            return at
        start, end, shown_start, shown_end = self._spans[index]
        if at <= start:
            return shown_start
        return shown_end if at < end else shown_end + at - end


class Redaction:
    """The marks of one item: made for its prompt and its output, and undone in its correction.

    What stands in its texts already is no mark of it, though it look like one. One that hides
    nothing has no marks.
    """

    def __init__(self, *texts: str, hides: bool = True) -> None:
        """`texts` are all that are to be redacted: a mark for one stands in none of the others."""
        self._hides = hides
        self._marks: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._literal: set[str] = set()
        for text in texts:
            self._avoid(text)

    @property
    def originals(self) -> Mapping[str, str]:
        """What each mark hides."""
        return {mark: hidden for (_, hidden), mark in self._marks.items()}

    def redact(self, text: str) -> Redacted:
        """Hide what points at a person."""
        self._avoid(text)
        parts: list[str] = []
        spans: list[tuple[int, int, int, int]] = []
        at = read = shown = 0
        for kind, start, end in telling_forms.spans(text) if self._hides else ():
            before, hidden = text[at:start], text[start:end]
            mark = self._mark(kind, hidden)
            width = len(before.encode("utf-8", "surrogatepass"))
            length = len(hidden.encode("utf-8", "surrogatepass"))
            read, shown = read + width, shown + width
            spans.append((read, read + length, shown, shown + len(mark)))
            read, shown = read + length, shown + len(mark)
            parts += (before, mark)
            at = end
        return Redacted("".join((*parts, text[at:])), tuple(spans))

    def restore(self, text: str) -> str:
        """Put back what the marks in a text hide; one that nobody made is left as it is."""
        originals = self.originals
        return _MARK.sub(lambda mark: originals.get(mark[0], mark[0]), text)

    def _avoid(self, text: str) -> None:
        self._literal.update(mark[0] for mark in _MARK.finditer(text))

    def _mark(self, kind: str, hidden: str) -> str:
        known = self._marks.get((kind, hidden))
        while known is None:
            number = self._counts[kind] = self._counts.get(kind, 0) + 1
            if (mark := f"[{kind} {number}]") not in self._literal:
                known = self._marks[kind, hidden] = mark
        return known
