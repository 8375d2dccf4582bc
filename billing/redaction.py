"""Hiding from a reviewer what points at a person, and putting it back into a correction. Pure.

E-mail addresses, card numbers, bank accounts, telephone numbers, network addresses and secrets
become `[email 1]`, `[card 1]` and so on; the same text becomes the same mark everywhere in an item.
Names and street addresses have no form that could be told from other words, and stay.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

# Every repetition is bounded, so that no text costs more than its length.
_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("email", re.compile(r"[\w.%+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,5}")),
    ("secret", re.compile(r"\b(?:sk|pk|rk|ghp|gho|dfl|xox[abp])[-_][A-Za-z0-9_-]{16,200}")),
    ("secret", re.compile(r"\b(?:github_pat|glpat|hf|npm|whsec)[-_][A-Za-z0-9_-]{16,200}")),
    ("secret", re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bAIza[A-Za-z0-9_-]{35}")),
    ("secret", re.compile(r"\beyJ[\w-]{8,500}\.eyJ[\w-]{8,4000}\.[\w-]{16,2000}")),
    (
        "secret",
        re.compile(
            r"-----BEGIN (?:[A-Z]{2,10} ){0,3}PRIVATE KEY-----[^-]{0,8000}"
            r"(?:-----END (?:[A-Z]{2,10} ){0,3}PRIVATE KEY-----)?"
        ),
    ),
    ("iban", re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b")),
    ("card", re.compile(r"(?<![\w.])\d(?:[ -]?\d){12,18}(?![\w.]\d)")),
    ("address", re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")),
    ("phone", re.compile(r"(?<![\w+.])\+\d{1,3}(?:[ ()./-]{0,2}\d){6,14}(?!\w)")),
    ("phone", re.compile(r"(?<![\w.])(?:\(\d{3}\) ?|\d{3}[ -])\d{3}-\d{4}(?!\w)")),
    ("phone", re.compile(r"(?<![\w.])\(?0\d{2,4}\)?[ /-]\d{3,4}(?:[ -]?\d{2,5}){1,2}(?!\w)")),
)


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

    One that hides nothing has no marks.
    """

    def __init__(self, *, hides: bool = True) -> None:
        self._hides = hides
        self._marks: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}

    @property
    def originals(self) -> Mapping[str, str]:
        """What each mark hides."""
        return {mark: hidden for (_, hidden), mark in self._marks.items()}

    def redact(self, text: str) -> Redacted:
        """Hide what points at a person."""
        parts: list[str] = []
        spans: list[tuple[int, int, int, int]] = []
        at = read = shown = 0
        for kind, start, end in _found(text) if self._hides else ():
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
        return re.sub(r"\[[a-z]{4,7} \d{1,6}\]", lambda mark: originals.get(mark[0], mark[0]), text)

    def _mark(self, kind: str, hidden: str) -> str:
        known = self._marks.get((kind, hidden))
        if known is None:
            self._counts[kind] = self._counts.get(kind, 0) + 1
            known = self._marks[kind, hidden] = f"[{kind} {self._counts[kind]}]"
        return known


def _found(text: str) -> Iterator[tuple[str, int, int]]:
    """What is to be hidden, in order, without overlaps: the kind named first wins."""
    taken: list[tuple[int, int, str]] = []
    for kind, pattern in _PATTERNS:
        for match in pattern.finditer(text):
            if kind == "card" and not _is_card(match[0]):
                continue
            if kind == "address" and any(int(part) > 255 for part in match[0].split(".")):
                continue
            taken.append((match.start(), match.end(), kind))
    end = 0
    for start, stop, kind in sorted(taken, key=lambda each: (each[0], -each[1])):
        if start >= end:
            yield kind, start, stop
            end = stop


def _is_card(text: str) -> bool:
    """Luhn's check: a digit in ten numbers passes it by chance, and every card does."""
    digits = [int(each) for each in text if each.isdigit()]
    summed = sum(
        sum(divmod(2 * digit, 10)) if index % 2 else digit
        for index, digit in enumerate(reversed(digits))
    )
    return summed % 10 == 0
