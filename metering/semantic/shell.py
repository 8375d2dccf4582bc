"""Shell: a unit per command line, header of a compound command, word that closes one, comment.

`if ...; then`, `for x in y; do`, `case x in`, a case's pattern and `f() {` are headers; `fi`,
`done`, `esac` and `}` with what follows them are brackets; a pipeline or a list joined by `&&` is
one statement. Each is read by tree-sitter once, when it ends, so work is linear in the text.
"""

from __future__ import annotations

import re

import tree_sitter_bash
from tree_sitter import Language, Parser

from metering.events import UnitState
from metering.semantic.scanner import Scanner
from metering.semantic.sentences import SPACES
from metering.semantic.shell_lexer import ShellLexer
from metering.semantic.tiling import OVERSIZE, Tiling

SHELL = Language(tree_sitter_bash.language())

_WAITS = {
    **dict.fromkeys(("if", "elif"), "then"),
    **dict.fromkeys(("while", "until", "for", "select"), "do"),
    "case": "in",
}
# What stands in for the rest of a compound command: before each of its parts, and behind.
_CLOSERS = {
    "fi": "if :; then :\n",
    "done": "while :; do :\n",
    "esac": "case _ in\n_) :;;\n",
    "}": "{ :\n",
}
_BEFORE = {"elif": _CLOSERS["fi"], "else": _CLOSERS["fi"], ")": "case _ in\n"}
_BEHIND = {
    "then": "\n:\nfi",
    "else": "\n:\nfi",
    "do": "\n:\ndone",
    "in": "\nesac",
    ")": "\n:;;\nesac",
    "{": "\n:\n}",
}
_PROMPT = "$ "  # before a command, as in a transcript
_FUNCTION = re.compile(r"[^\s()]+\s*\(\s*\)\s*")
_FUNCTION_MAX = 160
_WORD_MAX = 16
_ENDS_WORD = SPACES | frozenset(";|&<>()\"'`")


class Shell(Scanner):
    """The scanner of shell text."""

    __slots__ = (
        "_at_command",
        "_cases",
        "_chars",
        "_comment",
        "_first",
        "_fresh",
        "_joins",
        "_lexer",
        "_operator",
        "_pattern",
        "_semicolon",
        "_waits",
        "_word",
    )

    def __init__(self) -> None:
        self._cases = 0  # open `case` commands
        self._pattern = False  # a pattern of the innermost comes next, or `esac`
        self._fresh = True  # a new line came since the last clause
        self._semicolon = False  # the last character was one
        self._comment = ""  # the open one: "unit" or "part" of what stands before it
        self._chars: list[str] | None = None  # of the clause; null between clauses
        self._reset()

    def _reset(self) -> None:
        self._lexer = ShellLexer()
        self._first = ""  # the first word
        self._word = ""
        self._at_command = True  # a command's first word comes next
        self._waits = ""  # the word that ends the header
        self._operator = False  # the last token joins commands
        self._joins = 0  # the last tokens are `;` between a document's mark and the document

    def step(self, tiling: Tiling, char: str, at: int) -> Scanner:
        """Take one character."""
        if self._comment:
            if char == "\n":
                self._end_comment(tiling)
        elif self._chars is None:
            self._between(tiling, char, at)
        else:
            self._take(tiling, char, at)
        return self

    def finish(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """A text that stopped ends its line; one that was cut leaves it open."""
        if stopped:
            self.step(tiling, "\n", at)
        if tiling.is_open:
            tiling.close(UnitState.FRAGMENT)

    def copy(self) -> Shell:
        """An independent scanner in the same state."""
        twin = Shell.__new__(Shell)
        for name in self.__slots__:
            setattr(twin, name, getattr(self, name))
        twin._lexer = self._lexer.copy()
        twin._chars = None if self._chars is None else list(self._chars)
        return twin

    def _end_comment(self, tiling: Tiling) -> None:
        if self._comment == "unit":
            tiling.close()
        self._comment = ""
        self._fresh = True

    def _between(self, tiling: Tiling, char: str, at: int) -> None:
        was_semicolon, self._semicolon = self._semicolon, char == ";"
        if char == "\n":
            self._fresh = True
        if char in ";&":  # `;;`, `;&` and `;;&` end a case's commands
            self._pattern = self._pattern or (was_semicolon and self._cases > 0)
            return
        if char in SPACES:
            return
        if char == "#":
            is_unit = self._fresh or tiling.kind is None
            self._comment = "unit" if is_unit else "part"
            if is_unit:
                tiling.begin("comment", at)
            return
        tiling.begin("statement", at)
        self._reset()
        self._chars = []
        self._fresh = False
        self._take(tiling, char, at)

    def _take(self, tiling: Tiling, char: str, at: int) -> None:
        """Take a character of the clause."""
        assert self._chars is not None, "a clause was begun"
        if tiling.kind == OVERSIZE:
            self._chars.clear()
        lexer = self._lexer
        was_plain, was_document = lexer.is_plain, lexer.in_document
        if was_plain and char in _ENDS_WORD and self._end_word(tiling, char, at):
            return
        self._chars.append(char)
        if self._pattern and char == "(" and not self._word:
            return  # it may stand before a pattern
        lexer.read(char)
        if was_document:
            if not lexer.in_document and not lexer.stack:
                self._end_line(tiling)
            return
        if was_plain and lexer.is_plain:
            self._take_plain(tiling, char)
        elif char == "\n" and lexer.is_plain:  # that ended a comment, or was escaped
            if self._chars[-2:-1] != ["\\"]:
                self._take_plain(tiling, char)
        elif char == ")" and lexer.is_plain:
            self._close_bracket()

    def _take_plain(self, tiling: Tiling, char: str) -> None:
        """Take a character outside of everything that is quoted or bracketed."""
        if char == ")" and self._pattern:
            self._pattern = False
            self._end(tiling, header=")")
        elif char == "\n":
            self._end_line(tiling)
        elif char == ";":
            if self._waits:
                self._at_command = True
            elif self._lexer.awaits_document and self._chars:  # it belongs to what stands before
                self._at_command = True
                self._joins += 1
                self._chars.pop()
            else:
                self._end(tiling)
                self._semicolon = True
        elif char in "|&":
            doubled = self._chars is not None and self._chars[-2:-1] == [char]
            self._operator = char == "|" or doubled
            self._at_command = self._operator
        elif char not in SPACES:
            self._operator = False
            if self._joins and self._chars is not None:  # the grammar knows no `;` there
                self._joins = 0
                self._chars[-1:] = [" && ", char]
            if len(self._word) <= _WORD_MAX:
                self._word += char

    def _end_line(self, tiling: Tiling) -> None:
        names_function = self._first == "function" or self._is_function()
        if self._waits or self._operator or self._pattern or names_function:
            self._at_command = True
        else:
            self._end(tiling)
            self._fresh = True

    def _close_bracket(self) -> None:
        """A bracket closes outside of all others: `f()`, or a loop's arithmetic."""
        self._operator = False
        if self._waits or self._is_function():
            self._at_command = True

    def _is_function(self) -> bool:
        chars = self._chars or ()
        return len(chars) < _FUNCTION_MAX and _FUNCTION.fullmatch("".join(chars)) is not None

    def _end_word(self, tiling: Tiling, char: str, at: int) -> bool:
        """A word may be over; whether it ended a header before this character."""
        word, self._word = self._word, ""
        if not word or (self._pattern and word != "esac"):
            return False
        self._pattern = False
        is_first = not self._first
        self._first = self._first or word
        ends = ""
        if self._waits == "in":
            ends = "in" if word == "in" else ""
        elif self._at_command:
            self._at_command = word in ("!", "time") or self._first == "function"
            if self._waits:
                ends = word if word == self._waits else ""
            elif word in _WAITS:
                self._waits = _WAITS[word]
            elif word == "{" or (is_first and word in ("else", "then", "do")):
                ends = word
        if not ends:
            return False
        self._end(tiling, header=ends)
        self._cases += ends == "in"
        self._pattern = ends == "in"
        self._between(tiling, char, at)
        return True

    def _end(self, tiling: Tiling, header: str = "") -> None:
        """The clause is over: read it. `header`: the word that ends it as one."""
        text = "".join(self._chars or ()).removeprefix(_PROMPT)
        self._chars = None
        first = self._first
        if first == "esac":
            self._cases = max(0, self._cases - 1)
        self._pattern = self._pattern or (self._joins > 1 and self._cases > 0)
        if tiling.kind == OVERSIZE:
            tiling.close()
            return
        if header:
            kind = "header"
            before = _BEFORE.get(")" if header == ")" else first, "")
            text = before + text + _BEHIND[header]
        else:
            kind = "bracket" if first in _CLOSERS else "statement"
            text = _CLOSERS.get(first, "") + text
        tree = Parser(SHELL).parse(f"{text}\n".encode("utf-8", "surrogateescape"))
        valid = not tree.root_node.has_error
        tiling.close(UnitState.COMPLETE if valid else UnitState.FRAGMENT, kind=kind)
