"""Python: a unit per simple statement, per header of a compound one, per line of comment.

Logical lines are found by following brackets, strings and backslashes; each is then read by
tree-sitter once, when it ends, so the work is linear in the text. A decorator belongs to the
header that follows it.
"""

from __future__ import annotations

import re

from metering.events import UnitState
from metering.semantic import python_grammar
from metering.semantic.python_grammar import Clause
from metering.semantic.scanner import Scanner
from metering.semantic.sentences import SPACES
from metering.semantic.tiling import OVERSIZE, Tiling

OPEN_PARSE_CHARS_MAX = 4096  # a longer line that the text ends in is not read, but a fragment

# None of these can begin a line inside brackets, so one that does shows the bracket to be lost.
# fmt: off
_BEGIN_ANEW = frozenset({
    "assert", "break", "class", "continue", "def", "del", "elif", "except", "finally", "global",
    "import", "nonlocal", "pass", "raise", "return", "try", "while", "with",
})
# fmt: on
_PLAIN = re.compile(r"[^\n\\\"'#()\[\]{}\x80-\U0010ffff]+")  # nothing to a LineScanner
_WORD_CHARS_MAX = max(map(len, _BEGIN_ANEW))


class LineScanner:
    """Follows one logical line: whether a newline would end it."""

    __slots__ = ("_comment", "_depth", "_escaped", "_quote", "_quotes_seen")

    def __init__(self) -> None:
        self._depth = 0  # of brackets
        self._quote = ""  # what closes the open string: one or three marks
        self._quotes_seen = ""  # marks in a row that may open or close one
        self._escaped = False  # after a backslash
        self._comment = False

    @property
    def awaits_next(self) -> bool:
        """Whether the next character, whatever it is, says what the last ones were."""
        return self._escaped or self._quotes_seen != ""

    @property
    def in_brackets(self) -> bool:
        """Inside brackets, outside of strings."""
        return self._depth > 0 and not self._quote

    def ends_here(self) -> bool:
        """Whether a newline here ends the logical line."""
        if self._quotes_seen:
            self._settle_quotes()
        return not self._escaped and self._depth == 0 and len(self._quote) < 3

    def read(self, char: str) -> None:
        """Take the line's next character."""
        if self._quotes_seen and char != self._quotes_seen[0]:
            self._settle_quotes()
        if char == "\n":
            self._comment = False
            if len(self._quote) == 1 and not self._escaped:
                self._quote = ""  # an unfinished string ends with its line
            self._escaped = False
        elif self._comment:
            return
        elif self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif self._quote:
            self._read_in_string(char)
        elif char in "\"'":
            self._quotes_seen += char
            if len(self._quotes_seen) == 3:
                self._quote, self._quotes_seen = self._quotes_seen, ""
        elif char == "#":
            self._comment = True
        elif char in "([{":
            self._depth += 1
        elif char in ")]}":
            self._depth = max(0, self._depth - 1)

    def copy(self) -> LineScanner:
        """An independent scanner in the same state."""
        twin = LineScanner()
        twin._depth, twin._quote, twin._quotes_seen = self._depth, self._quote, self._quotes_seen
        twin._escaped, twin._comment = self._escaped, self._comment
        return twin

    def _read_in_string(self, char: str) -> None:
        if char != self._quote[0]:
            return
        self._quotes_seen += char
        if len(self._quotes_seen) == len(self._quote):
            self._quote = self._quotes_seen = ""

    def _settle_quotes(self) -> None:
        """The run of quotes is over: one opens a string, two are an empty one, or text in one."""
        if not self._quote and len(self._quotes_seen) == 1:
            self._quote = self._quotes_seen
        self._quotes_seen = ""


class Python(Scanner):
    """The scanner of Python text."""

    __slots__ = ("_chars", "_decorated", "_line", "_line_at", "_word", "_word_at")

    def __init__(self) -> None:
        self._chars: list[str] | None = None  # of the logical line; null between lines
        self._line = LineScanner()
        self._line_at = 0  # byte offset of the logical line
        self._decorated = False  # the open unit is a decorator, waiting for its definition
        self._word: str | None = None  # that a line inside brackets begins with; null further on
        self._word_at = 0

    def step(self, tiling: Tiling, char: str, at: int) -> Scanner:
        """Take one character."""
        if self._chars is None:
            if char not in SPACES:
                self._begin(tiling, at)
                self._take(char)
            return self
        if self._word is not None and self._begins_anew(char, at):
            word, word_at = self._word, self._word_at
            tiling.close(UnitState.FRAGMENT)
            self._decorated = False
            self._begin(tiling, word_at)
            for letter in word:
                self._take(letter)
        if tiling.kind == OVERSIZE:
            self._chars.clear()
        if char == "\n" and self._line.ends_here():
            self._end(tiling)
        else:
            self._take(char)
        return self

    def pass_over(self, tiling: Tiling, text: str, first: int) -> int:
        """What stands in a line between quotes, brackets and comment signs."""
        chars = self._chars
        if chars is None or self._word is not None or self._line.awaits_next:
            return first
        plain = _PLAIN.match(text, first)
        if plain is None or tiling.kind == OVERSIZE:
            return first
        chars += plain[0]
        return plain.end()

    def finish(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """A text that stopped ends its line. In one that was cut, a header may be whole."""
        if self._chars is not None and tiling.kind != OVERSIZE:
            readable = self._line.ends_here() and len(self._chars) <= OPEN_PARSE_CHARS_MAX
            if readable and stopped:
                self._end(tiling)
            elif readable and not self._decorated:
                self._close_cut(tiling)
        if tiling.is_open:
            tiling.close(UnitState.FRAGMENT, kind="header" if self._decorated else None)

    def copy(self) -> Python:
        """An independent scanner in the same state."""
        twin = Python()
        twin._chars = None if self._chars is None else list(self._chars)
        twin._line, twin._line_at = self._line.copy(), self._line_at
        twin._decorated = self._decorated
        twin._word, twin._word_at = self._word, self._word_at
        return twin

    def _begin(self, tiling: Tiling, at: int) -> None:
        self._chars = []
        self._line = LineScanner()
        self._line_at = at
        self._word = None
        if not (self._decorated and tiling.is_open):
            self._decorated = False
            tiling.begin("statement", at)

    def _take(self, char: str) -> None:
        assert self._chars is not None, "a line was begun"
        self._chars.append(char)
        self._line.read(char)
        if char == "\n" and self._line.in_brackets:
            self._word = ""

    def _begins_anew(self, char: str, at: int) -> bool:
        """Whether a keyword that cannot be inside brackets has just been read on this line."""
        word = self._word or ""
        if char in SPACES and not word:
            return False
        if "a" <= char <= "z" and len(word) < _WORD_CHARS_MAX:
            self._word_at = self._word_at if word else at
            self._word = word + char
            return False
        if word in _BEGIN_ANEW and (char in SPACES or char == ":"):
            return True
        self._word = None
        return False

    def _end(self, tiling: Tiling) -> None:
        """The logical line is over: close what it holds."""
        text = "".join(self._chars or ())
        self._chars = None
        if tiling.kind == OVERSIZE:
            tiling.close()
            return
        if text.startswith("#"):
            if not self._decorated:
                tiling.close(kind="comment")
            return
        if text.startswith("@") and python_grammar.is_decorator(text):
            self._decorated = True
            return
        found = python_grammar.clauses(text)
        if self._decorated:
            self._decorated = False
            if not (found and found[0].decoratable):
                tiling.close(UnitState.FRAGMENT, kind="header")
                tiling.begin("statement", self._line_at)
        if found is None:
            tiling.close(UnitState.FRAGMENT, kind="statement")
        else:
            self._close(tiling, found)

    def _close_cut(self, tiling: Tiling) -> None:
        """The text was cut in this line: its last clause is whole only if it is a header."""
        text = "".join(self._chars or ())
        if text.startswith("#"):
            tiling.close(UnitState.FRAGMENT, kind="comment")
            return
        found = python_grammar.clauses(text)
        if found is None:
            return
        self._close(tiling, found)
        if found[-1].kind != "header" or not text.rstrip().endswith(":"):
            tiling.close(UnitState.FRAGMENT)

    def _close(self, tiling: Tiling, found: list[Clause]) -> None:
        """Close the open unit as the line's first clause, and each further one behind it."""
        tiling.close(kind=found[0].kind)
        for clause in found[1:]:
            tiling.begin(clause.kind, self._line_at + clause.start)
            tiling.close()
