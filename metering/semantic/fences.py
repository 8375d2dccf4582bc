"""A fenced block: its closing line, and the language inside.

The fence's own lines are separators. A closing line is indented by at most three columns more
than the opening one; anything else is the language's.
"""

from __future__ import annotations

import re

from metering.events import UnitState
from metering.semantic.json_text import Json
from metering.semantic.lines import Lines
from metering.semantic.python_code import Python
from metering.semantic.scanner import Scanner
from metering.semantic.script import Script
from metering.semantic.script_grammar import JAVASCRIPT, TSX, TYPESCRIPT
from metering.semantic.shell import Shell
from metering.semantic.sql import Sql
from metering.semantic.tiling import Tiling

PYTHON_NAMES = frozenset({"python", "py", "python3", "py3"})
JSON_NAMES = frozenset({"json", "jsonl", "ndjson", "geojson"})
SCRIPT_NAMES = {
    **dict.fromkeys(("javascript", "js", "mjs", "cjs", "jsx", "node"), JAVASCRIPT),
    **dict.fromkeys(("typescript", "ts", "mts", "cts"), TYPESCRIPT),
    "tsx": TSX,
}
SQL_NAMES = frozenset({"sql", "postgresql", "postgres", "mysql", "sqlite", "plpgsql", "tsql"})
SHELL_NAMES = frozenset({"bash", "sh", "shell", "zsh"})
EXTRA_INDENT_MAX = 3

ITEM = r"(?:[-*+]|\d{1,9}[.)])[ \t]+"  # a list item may begin with a fence
_OPENING = re.compile(rf"(?P<indent>[ \t]*(?:{ITEM})?)(?P<marks>`{{3,}}|~{{3,}})(?P<info>.*)")
_LANGUAGE = re.compile(r"[a-z0-9_+#-]*")
_MARKS_MAX = 256  # a longer run of marks and spaces is text


def opens(line: str) -> bool:
    """Whether a whole line opens a fence; back-quotes behind back-quotes are inline code."""
    match = _OPENING.fullmatch(line)
    return match is not None and not ("`" in match["marks"] and "`" in match["info"])


def open_fence(line: str, outer: Scanner) -> Fence:
    """The scanner behind an opening line; `outer` goes on after the closing one."""
    match = _OPENING.fullmatch(line)
    if match is None:
        raise ValueError(f"{line!r} opens no fence")
    return Fence(outer, len(match["indent"]), match["marks"], _body(match["info"]))


class Fence(Scanner):
    """The scanner of a fenced block; returns to the outer one when the block closes."""

    __slots__ = ("_body", "_head", "_head_at", "_indent", "_marks", "_outer")

    def __init__(self, outer: Scanner, indent: int, marks: str, body: Scanner) -> None:
        self._outer = outer
        self._indent = indent
        self._marks = marks
        self._body = body
        self._head: str | None = ""  # the line so far, while it may be the closing one
        self._head_at = 0

    def step(self, tiling: Tiling, char: str, at: int) -> Scanner:
        """Take one character; the end of the closing line hands back to the outer scanner."""
        if self._head is None:
            self._feed(tiling, char, at)
            return self
        if not self._head:
            self._head_at = at
        if char == "\n":
            if self._closes(self._head):
                self._end(tiling, at, stopped=True)
                return self._outer
            self._release(tiling)
            self._feed(tiling, char, at)
            return self
        self._head += char
        if not self._may_close(self._head):
            self._release(tiling)
        return self

    def pass_over(self, tiling: Tiling, text: str, first: int) -> int:
        """What the language passes over, in a line that can't be the closing one."""
        return first if self._head is not None else self._body.pass_over(tiling, text, first)

    def finish(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """The text ends in the block, or with its closing line."""
        if self._head is not None and self._closes(self._head):
            stopped = True
        else:
            self._release(tiling)
        self._end(tiling, at, stopped=stopped)

    def copy(self) -> Fence:
        """An independent scanner in the same state."""
        twin = Fence(self._outer.copy(), self._indent, self._marks, self._body.copy())
        twin._head, twin._head_at = self._head, self._head_at
        return twin

    def _end(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """The language's text is over; what it left open does not go on behind the fence."""
        self._body.finish(tiling, at, stopped=stopped)
        if tiling.is_open:
            tiling.close(UnitState.FRAGMENT)

    def _feed(self, tiling: Tiling, char: str, at: int) -> None:
        self._body = self._body.step(tiling, char, at)
        if char == "\n":
            self._head = ""

    def _release(self, tiling: Tiling) -> None:
        """The line is not the closing one: hand what was held back to the language."""
        head, self._head = self._head or "", None
        for offset, char in enumerate(head):  # spaces and marks: a byte each
            self._feed(tiling, char, self._head_at + offset)

    def _closes(self, line: str) -> bool:
        marks = line.strip(" \t\r")
        return len(marks) >= len(self._marks) and self._may_close(line)

    def _may_close(self, line: str) -> bool:
        marks = line.lstrip(" \t")
        indent = len(line) - len(marks)
        return (
            indent <= self._indent + EXTRA_INDENT_MAX
            and len(marks) <= _MARKS_MAX
            and not marks.rstrip(" \t\r").strip(self._marks[0])
        )


def _body(info: str) -> Scanner:
    match = _LANGUAGE.match(info.strip().lstrip("{.").lower())
    language = match[0] if match else ""
    if language in PYTHON_NAMES:
        return Python()
    if language in JSON_NAMES:
        return Json(_lines, many=True)
    if language in SCRIPT_NAMES:
        return Script(SCRIPT_NAMES[language])
    if language in SQL_NAMES:
        return Sql(language)
    if language in SHELL_NAMES:
        return Shell()
    return Lines()


def _lines(_in_line: bool) -> Scanner:
    return Lines()
