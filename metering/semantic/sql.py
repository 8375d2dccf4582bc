"""SQL: a unit per statement, up to its semicolon; a routine's `BEGIN` and `END` are units too.

A statement that its author ended with a semicolon is complete if it begins with a word that begins
statements and its quotes and brackets are closed: no grammar knows every dialect. Any other is
complete only if tree-sitter's grammar accepts it.
"""

from __future__ import annotations

import re

import tree_sitter_sql
from tree_sitter import Language, Parser

from metering.events import UnitState
from metering.semantic.scanner import Scanner
from metering.semantic.sentences import SPACES
from metering.semantic.tiling import OVERSIZE, Tiling

SQL = Language(tree_sitter_sql.language())

# fmt: off
_STATEMENTS = frozenset({
    "alter", "analyze", "attach", "begin", "call", "checkpoint", "close", "cluster", "comment",
    "commit", "copy", "create", "deallocate", "declare", "delete", "desc", "describe", "detach",
    "do", "drop", "else", "elseif", "elsif", "end", "exec", "execute", "explain", "fetch",
    "flush", "grant", "if", "insert", "iterate", "kill", "leave", "listen", "load", "lock",
    "loop", "merge", "notify", "open", "optimize", "pragma", "prepare", "print", "raise",
    "refresh", "reindex", "release", "rename", "replace", "reset", "return", "revoke",
    "rollback", "savepoint", "select", "set", "show", "signal", "start", "table", "truncate",
    "unlock", "update", "use", "vacuum", "values", "while", "with",
})
# fmt: on
_ROUTINES = frozenset({"trigger", "procedure", "function", "event"})
_LINE_COMMANDS = frozenset({"delimiter", "go"})
_END_OF_BLOCK = re.compile(r"end\s*(?!\s|if\b|loop\b|while\b|case\b|repeat\b|for\b)", re.IGNORECASE)
_NAME_BRACKETS = frozenset({"tsql", "sqlite"})  # where `[a;b]` is a name, and no index
_NESTS = {"(": 1, "[": 1, ")": -1, "]": -1}
_TAG_MAX = 64  # a longer `$tag$` quotes nothing
_WORD_MAX = 16
_DELIMITER_MAX = 8


class Sql(Scanner):
    """The scanner of SQL text, of the dialect that its fence names."""

    __slots__ = (
        "_blocks",
        "_chars",
        "_comment",
        "_comment_is_unit",
        "_delimiter",
        "_depth",
        "_dialect",
        "_escaped",
        "_first",
        "_fresh",
        "_held",
        "_held_at",
        "_quote",
        "_routine",
        "_tag",
        "_tail",
        "_word",
    )

    def __init__(self, dialect: str = "sql") -> None:
        self._dialect = dialect
        self._blocks = 0  # open ones of a routine
        self._delimiter = ""  # that the client's own command set
        self._fresh = True  # a new line came since the last statement
        self._held = ""  # a character that may begin a comment
        self._held_at = 0
        self._comment = ""  # what the open one began with
        self._comment_is_unit = False
        self._chars: list[str] | None = None  # of the statement; null between statements
        self._reset()

    def _reset(self) -> None:
        self._depth = 0  # of brackets
        self._quote = ""  # what closes the open string or name
        self._escaped = False  # the next character of the string is
        self._tag = ""  # a dollar quote's mark so far
        self._tail = ""  # the last characters, to find what ends a quote or comment
        self._word = ""
        self._first = ""  # the first word
        self._routine = False  # the statement defines one

    def step(self, tiling: Tiling, char: str, at: int) -> Scanner:
        """Take one character."""
        if self._comment:
            self._in_comment(tiling, char, at)
        elif self._held:
            held, self._held = self._held, ""
            if held + char in ("--", "/*"):
                self._begin_comment(tiling, held, self._held_at)
            else:
                self._code(tiling, held, self._held_at)
                self.step(tiling, char, at)
        elif char in "-/" and not self._quote:
            self._held, self._held_at = char, at
        elif char == "#" and self._dialect == "mysql" and not self._quote:
            self._begin_comment(tiling, char, at)
        else:
            self._code(tiling, char, at)
        return self

    def finish(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """A text that stopped ends its statement; one that was cut leaves it open."""
        if self._held:
            self._code(tiling, self._held, self._held_at)
        if stopped:
            if self._chars is not None and not self._quote:
                self._end_word(tiling)
            if self._chars is not None and not self._quote:
                self._end(tiling, by_mark=self._first in _LINE_COMMANDS)
            elif self._comment in ("-", "#") and self._comment_is_unit:
                tiling.close()
        if tiling.is_open:
            tiling.close(UnitState.FRAGMENT)

    def copy(self) -> Sql:
        """An independent scanner in the same state."""
        twin = Sql.__new__(Sql)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._chars = None if self._chars is None else list(self._chars)
        return twin

    def _begin_comment(self, tiling: Tiling, mark: str, at: int) -> None:
        """A comment is a unit on a line of its own, else a part of what stands before it."""
        self._comment, self._tail = mark, ""
        self._comment_is_unit = self._chars is None and (self._fresh or tiling.kind is None)
        if self._comment_is_unit:
            tiling.begin("comment", at)

    def _in_comment(self, tiling: Tiling, char: str, at: int) -> None:
        ended = self._tail + char == "*/" if self._comment == "/" else char == "\n"
        self._tail = char
        if not ended:
            return
        if self._comment_is_unit:
            tiling.close()
        self._comment, self._comment_is_unit, self._tail = "", False, ""
        self._code(tiling, "\n" if char == "\n" else " ", at)

    def _code(self, tiling: Tiling, char: str, at: int) -> None:
        if self._chars is None:
            if char == "\n":
                self._fresh = True
            if char in SPACES or char == ";":
                return
            tiling.begin("statement", at)
            self._reset()
            self._chars = []
            self._fresh = False
        if tiling.kind == OVERSIZE:
            self._chars.clear()
        if self._quote:
            self._chars.append(char)
            self._in_quote(char)
        else:
            self._take(tiling, char)

    def _in_quote(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
            return
        if char == "\\" and self._dialect == "mysql" and self._quote in "'\"":
            self._escaped = True
            return
        self._tail = (self._tail + char)[-len(self._quote) :]
        if self._tail == self._quote:
            self._quote = self._tail = ""

    def _take(self, tiling: Tiling, char: str) -> None:
        """Take a character outside of quotes and comments."""
        assert self._chars is not None, "a statement was begun"
        is_word = char.isalnum() or char == "_" or char > "\x7f"
        if is_word and len(self._word) < _WORD_MAX:
            self._word += char
        elif not is_word and self._word:
            self._end_word(tiling)
            if self._chars is None:  # that word ended a header
                self._fresh = char == "\n"
                return
        self._chars.append(char)
        if self._tag:
            self._tag = self._tag + char if is_word and len(self._tag) < _TAG_MAX else self._tag
            if char == "$":
                self._quote, self._tag = self._tag + "$", ""
                return
            if not is_word:
                self._tag = ""
        if char == "$":
            self._tag = "$"
        elif quote := self._closer(char):
            self._quote, self._tail = quote, ""
        elif char in _NESTS:
            self._depth += _NESTS[char]
        elif char == ";" or self._delimits(char):
            self._end(tiling, by_mark=True)
        elif char == "\n" and (self._first in _LINE_COMMANDS or self._chars[0] in "\\."):
            self._end(tiling, by_mark=True)
            self._fresh = True

    def _closer(self, char: str) -> str:
        """What closes the string or name that a character opens; nothing where it opens none."""
        if char in "'\"`":
            return char
        if self._dialect in _NAME_BRACKETS:
            again = char == "]" and (self._chars or [])[-2:-1] == ["]"]  # `]]` stands for one in it
            if char == "[" or again:
                return "]"
        return ""

    def _delimits(self, char: str) -> bool:
        mark = self._delimiter
        return (
            mark != ""
            and char == mark[-1]
            and "".join((self._chars or [])[-len(mark) :]) == mark
            and self._depth == 0
        )

    def _end_word(self, tiling: Tiling) -> None:
        """A word is over; a routine's `BEGIN` ends its header."""
        word, self._word = self._word.lower(), ""
        self._first = self._first or word
        if self._first != "create" or self._depth:
            return
        if word in _ROUTINES:
            self._routine = True
        elif word == "begin" and self._routine:
            self._chars = None
            self._blocks += 1
            tiling.close(kind="header")

    def _end(self, tiling: Tiling, *, by_mark: bool) -> None:
        """The statement is over; `by_mark`: its author ended it."""
        text = "".join(self._chars or ())
        self._chars = None
        if tiling.kind == OVERSIZE:
            tiling.close()
            return
        first = self._first
        kind = "statement"
        if first == "end" and self._blocks:
            kind = "bracket"
            self._blocks -= _END_OF_BLOCK.match(text) is not None
        if first == "delimiter":
            mark = text[len(first) :].strip()
            self._delimiter = "" if mark == ";" else mark[:_DELIMITER_MAX]
        known = first in _STATEMENTS or first in _LINE_COMMANDS or text[0] in "\\."
        valid = self._depth == 0 and ((by_mark and known) or _accepts(text))
        tiling.close(UnitState.COMPLETE if valid else UnitState.FRAGMENT, kind=kind)


def _accepts(text: str) -> bool:
    tree = Parser(SQL).parse(text.encode("utf-8", "surrogateescape"))
    return not tree.root_node.has_error
