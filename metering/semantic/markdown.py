"""Markdown structure and prose: headings, list items, table rows, fences, sentences.

A line's beginning is held back until it is clear what the line is; that takes a few characters,
or the whole line where it may be a fence, a rule or a table's delimiter row. This is a frozen
subset of Markdown, not CommonMark: indentation never makes code, and a list item is its line with
the lines that go on with it.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from metering.semantic.fences import ITEM, open_fence, opens
from metering.semantic.json_text import Json
from metering.semantic.scanner import Scanner, width
from metering.semantic.sentences import SPACES, SentenceEnd, goes_on
from metering.semantic.tiling import Tiling

HEAD_CHARS_MAX = 256  # a line whose kind is still open then is prose

_RULE = re.compile(r"([-*_=])[ \t]*(\1[ \t]*){2,}")
_DELIMITER_ROW = re.compile(r"\|?[ \t:|-]*-[ \t:|-]*")
_HEADING = re.compile(r"#{1,6}([ \t]|$)")
_LIST_ITEM = re.compile(r"([-*+]|\d{1,9}[.)])([ \t]|$)")
_BEFORE_TEXT = SPACES | {">"}

# What may still turn out to be one of them, or something else; matched against the head so far.
_MAY_STILL_CHANGE = re.compile(
    r"`{1,2}|~{1,2}|`{3,}[^`]*|~{3,}.*"  # a fence
    rf"|{ITEM}(`{{0,2}}|~{{0,2}}|`{{3,}}[^`]*|~{{3,}}.*)"  # a fence in a list item
    r"|(?P<mark>[-*_=])[ \t]*((?P=mark)[ \t]*)*"  # a rule
    r"|\|[ \t:|-]*"  # a delimiter row
    r"|#{1,6}"  # a heading
    r"|[-*+]|\d{1,9}[.)]?"  # a list item
)


class LineKind(Enum):
    """What a line turned out to be; the values are kinds of units where it makes one."""

    UNDECIDED = auto()
    BLANK = auto()
    SEPARATOR = auto()
    FENCE = auto()
    HEADING = "heading"
    LIST_ITEM = "list_item"
    TABLE_ROW = "table_row"
    PROSE = "sentence"


_SEPARATORS = frozenset({LineKind.BLANK, LineKind.SEPARATOR, LineKind.FENCE})


def line_kind(indent: str, head: str, *, ended: bool) -> LineKind:
    """What the line is that begins with this indentation and text. `ended`: nothing follows."""
    if not head:
        return LineKind.BLANK if ended else LineKind.UNDECIDED
    if not ended and len(head) < HEAD_CHARS_MAX and _MAY_STILL_CHANGE.fullmatch(head):
        return LineKind.UNDECIDED
    if ended and opens(indent + head):
        kind = LineKind.FENCE
    elif ended and (_RULE.fullmatch(head) or _is_delimiter_row(head)):
        kind = LineKind.SEPARATOR
    elif _HEADING.match(head):
        kind = LineKind.HEADING
    elif _LIST_ITEM.match(head):
        kind = LineKind.LIST_ITEM
    else:
        kind = LineKind.TABLE_ROW if head[0] == "|" else LineKind.PROSE
    return kind


class Markdown(Scanner):
    """The scanner of undeclared text."""

    __slots__ = ("_at_start", "_head", "_head_at", "_in_item", "_indent", "_line", "_sentence")

    def __init__(self, *, in_line: bool = False, at_start: bool = False) -> None:
        self._at_start = at_start  # of the whole output: a bracket there may begin JSON
        self._line = LineKind.PROSE if in_line else LineKind.UNDECIDED
        self._in_item = False  # the open unit is a list item
        self._indent = ""  # white space and quote marks that the undecided line begins with
        self._head = ""  # its text so far
        self._head_at = 0  # byte offset of that
        self._sentence = SentenceEnd()  # of the open sentence, if any

    def step(self, tiling: Tiling, char: str, at: int) -> Scanner:
        """Take one character; a fence's first line hands over to the fence."""
        if self._line is not LineKind.UNDECIDED:
            self._read(tiling, char, at)
            return self
        if char == "\n":
            return self._end_head(tiling, at)
        if not self._head:
            if char in _BEFORE_TEXT:
                if len(self._indent) < HEAD_CHARS_MAX:
                    self._indent += char
                return self
            if self._at_start and char in "{[":
                return Json(_after_json, many=False).step(tiling, char, at)
            self._at_start = False
            self._head_at = at
        self._head += char
        kind = line_kind(self._indent, self._head, ended=False)
        if kind is not LineKind.UNDECIDED:
            self._begin_line(tiling, kind)
        return self

    def pass_over(self, tiling: Tiling, text: str, first: int) -> int:
        """What a sentence passes over, in a line whose kind is known."""
        if self._line is LineKind.UNDECIDED or not tiling.is_open:
            return first
        return self._sentence.pass_over(text, first)

    def finish(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """A text that stopped ends its line; one that was cut leaves it open."""
        if self._line is LineKind.UNDECIDED and self._head:
            kind = line_kind(self._indent, self._head, ended=True)
            if kind in _SEPARATORS:
                stopped = True
            else:
                self._begin_line(tiling, kind)
        line_ended = stopped or self._line is LineKind.UNDECIDED
        sentence_ended = self._line is LineKind.PROSE and self._sentence.ended_for_certain
        if tiling.is_open and (line_ended or sentence_ended):
            tiling.close()

    def copy(self) -> Markdown:
        """An independent scanner in the same state."""
        twin = Markdown.__new__(Markdown)
        twin._at_start, twin._line, twin._in_item = self._at_start, self._line, self._in_item
        twin._indent, twin._head, twin._head_at = self._indent, self._head, self._head_at
        twin._sentence = self._sentence.copy()
        return twin

    def _end_head(self, tiling: Tiling, at: int) -> Scanner:
        line = self._indent + self._head
        kind = line_kind(self._indent, self._head, ended=True)
        if kind not in _SEPARATORS:
            self._begin_line(tiling, kind)
            self._read(tiling, "\n", at)
            return self
        if tiling.is_open:
            tiling.close()
        self._next_line()
        return open_fence(line, self) if kind is LineKind.FENCE else self

    def _begin_line(self, tiling: Tiling, kind: LineKind) -> None:
        """The line's kind is known: begin its unit, or go on with the one before it."""
        head, at = self._head, self._head_at
        continues = (
            kind is LineKind.PROSE
            and tiling.is_open
            and goes_on(head[0])
            and not self._sentence.starts_another(head[0])
        )
        self._line = kind
        if not continues:
            if tiling.is_open:
                tiling.close()
            self._begin(tiling, kind, at)
        elif self._in_item:
            self._line = LineKind.LIST_ITEM  # a line of it: sentences do not split an item
        for char in head:
            self._read(tiling, char, at)
            at += width(char)

    def _begin(self, tiling: Tiling, kind: LineKind, at: int) -> None:
        tiling.begin(str(kind.value), at)
        self._sentence = SentenceEnd()
        self._in_item = kind is LineKind.LIST_ITEM

    def _read(self, tiling: Tiling, char: str, at: int) -> None:
        """Take a character of a line whose kind is known."""
        if char == "\n":
            if self._line in (LineKind.HEADING, LineKind.TABLE_ROW) and tiling.is_open:
                tiling.close()
            self._sentence.read(" ")
            self._next_line()
            return
        if self._line is LineKind.PROSE and char not in SPACES:
            if not tiling.is_open:
                self._begin(tiling, LineKind.PROSE, at)
            elif self._sentence.starts_another(char):
                tiling.close()
                self._begin(tiling, LineKind.PROSE, at)
        self._sentence.read(char)

    def _next_line(self) -> None:
        self._line = LineKind.UNDECIDED
        self._indent = self._head = ""


def _is_delimiter_row(head: str) -> bool:
    return "|" in head and _DELIMITER_ROW.fullmatch(head) is not None


def _after_json(in_line: bool) -> Scanner:
    return Markdown(in_line=in_line)
