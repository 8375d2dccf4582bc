"""JSON as RFC 8259 has it, strictly, one character at a time.

A unit is a scalar member or element, with the brackets and the key that lead to it, or the
bracket that closes a container. What turns out not to be JSON is read again, from where its open
unit began, by the fallback: a closed unit never reopens.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum, auto

from metering.events import UnitState
from metering.semantic.scanner import Scanner
from metering.semantic.tiling import OVERSIZE, Tiling

DEPTH_MAX = 512  # deeper nesting is not read as JSON

_SPACES = frozenset(" \t\n\r")
_LITERALS = {"t": "true", "f": "false", "n": "null"}
_HEX = frozenset("0123456789abcdefABCDEF")
_NUMBER_CHARS = frozenset("+-.0123456789eE")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_CHARS_MAX = 1024
_AFTER_NUMBER = _SPACES | frozenset(",]}")


class Expect(Enum):
    """What may come next."""

    VALUE = auto()
    FIRST_ELEMENT = auto()  # or the bracket of an empty array
    FIRST_KEY = auto()  # or the bracket of an empty object
    KEY = auto()
    COLON = auto()
    COMMA = auto()  # or the bracket that closes
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    LITERAL = auto()
    NOTHING = auto()  # the document is complete


class Json(Scanner):
    """The scanner of JSON. `many`: several documents may follow each other, however they do.

    Otherwise only an object or array that begins a line of its own does, as in JSON Lines.

    `fallback` makes the scanner that goes on where JSON ends; it is told whether it starts within
    a line.
    """

    __slots__ = (
        "_expect",
        "_fallback",
        "_in_key",
        "_in_line",
        "_many",
        "_rest",
        "_stack",
        "_tail",
        "_tail_in_line",
    )

    def __init__(self, fallback: Callable[[bool], Scanner], *, many: bool) -> None:
        self._fallback = fallback
        self._many = many
        self._expect = Expect.VALUE
        self._stack = ""  # open containers, "{" and "["
        self._in_key = False
        self._rest = ""  # of a literal, a number so far, or hex digits so far
        self._in_line = False  # something but white space came before on this line
        self._tail: list[tuple[str, int]] = []  # the open unit, in case it isn't JSON
        self._tail_in_line = False

    def step(self, tiling: Tiling, char: str, at: int) -> Scanner:
        """Take one character; what is no JSON goes to the fallback, with all after it."""
        if not self._read(tiling, char, at):
            return self._give_up(tiling, char, at)
        if not tiling.is_open or tiling.kind == OVERSIZE:
            self._tail.clear()
        else:
            if not self._tail:
                self._tail_in_line = self._in_line
            self._tail.append((char, at))
        self._in_line = char != "\n" and (self._in_line or char not in _SPACES)
        return self

    def finish(self, tiling: Tiling, at: int, *, stopped: bool) -> None:
        """A number that the text stopped at is whole; what is open otherwise is a fragment."""
        if stopped and self._expect is Expect.NUMBER and _NUMBER.fullmatch(self._rest):
            self._end_scalar(tiling)
        elif tiling.is_open:
            tiling.close(UnitState.FRAGMENT, kind=self._kind())

    def copy(self) -> Json:
        """An independent scanner in the same state."""
        twin = Json(self._fallback, many=self._many)
        twin._expect, twin._stack, twin._in_key = self._expect, self._stack, self._in_key
        twin._rest, twin._in_line = self._rest, self._in_line
        twin._tail, twin._tail_in_line = list(self._tail), self._tail_in_line
        return twin

    def _give_up(self, tiling: Tiling, char: str, at: int) -> Scanner:
        scanner = self._fallback(self._tail_in_line if self._tail else self._in_line)
        if self._tail:
            tiling.withdraw()
        for earlier, earlier_at in self._tail:
            scanner = scanner.step(tiling, earlier, earlier_at)
        return scanner.step(tiling, char, at)

    def _read(self, tiling: Tiling, char: str, at: int) -> bool:
        """Take one character; false when JSON doesn't allow it here."""
        match self._expect:
            case Expect.STRING:
                allowed = self._in_string(tiling, char)
            case Expect.ESCAPE:
                allowed = self._in_escape(char)
            case Expect.HEX:
                allowed = self._in_hex(char)
            case Expect.LITERAL:
                allowed = self._in_literal(tiling, char)
            case Expect.NUMBER if char in _NUMBER_CHARS:
                self._rest += char
                allowed = len(self._rest) <= _NUMBER_CHARS_MAX
            case Expect.NUMBER:
                allowed = self._behind_number(tiling, char, at)
            case _:
                allowed = char in _SPACES or self._between(tiling, char, at)
        return allowed

    def _behind_number(self, tiling: Tiling, char: str, at: int) -> bool:
        if char not in _AFTER_NUMBER or not _NUMBER.fullmatch(self._rest):
            return False
        self._end_scalar(tiling)
        return char in _SPACES or self._between(tiling, char, at)

    def _between(self, tiling: Tiling, char: str, at: int) -> bool:
        """A character outside of scalars, no white space."""
        expect = self._expect
        if expect is Expect.COLON:
            self._expect = Expect.VALUE
            return char == ":"
        if expect is Expect.COMMA and char == ",":
            self._expect = Expect.KEY if self._stack[-1] == "{" else Expect.VALUE
            return True
        if char in "}]":
            return self._close(tiling, char, at)
        if expect in (Expect.KEY, Expect.FIRST_KEY):
            self._in_key = True
            return char == '"' and self._begin(tiling, char, at)
        begins_line = char in "{[" and not self._in_line
        if expect is Expect.NOTHING and (self._many or begins_line):
            self._expect = expect = Expect.VALUE
        if expect in (Expect.VALUE, Expect.FIRST_ELEMENT):
            self._in_key = False
            return self._begin(tiling, char, at)
        return False

    def _begin(self, tiling: Tiling, char: str, at: int) -> bool:
        """The first character of a value or a key."""
        if char == '"':
            self._expect = Expect.STRING
        elif char in "{[":
            if len(self._stack) == DEPTH_MAX:
                return False
            self._stack += char
            self._expect = Expect.FIRST_KEY if char == "{" else Expect.FIRST_ELEMENT
        elif char in _LITERALS:
            self._expect = Expect.LITERAL
            self._rest = _LITERALS[char][1:]
        elif char == "-" or "0" <= char <= "9":
            self._expect = Expect.NUMBER
            self._rest = char
        else:
            return False
        if not tiling.is_open:
            tiling.begin("value", at)
        return True

    def _close(self, tiling: Tiling, char: str, at: int) -> bool:
        opened = {"}": "{", "]": "["}[char]
        first = Expect.FIRST_KEY if opened == "{" else Expect.FIRST_ELEMENT
        if self._stack[-1:] != opened or self._expect not in (Expect.COMMA, first):
            return False
        self._stack = self._stack[:-1]
        if not tiling.is_open:
            tiling.begin("bracket", at)
        tiling.close(kind="bracket")
        self._expect = Expect.COMMA if self._stack else Expect.NOTHING
        return True

    def _in_string(self, tiling: Tiling, char: str) -> bool:
        if char == "\\":
            self._expect = Expect.ESCAPE
        elif char == '"':
            if self._in_key:
                self._expect = Expect.COLON
            else:
                self._end_scalar(tiling)
        return char >= " " and not "\udc80" <= char <= "\udcff"

    def _in_escape(self, char: str) -> bool:
        self._rest = ""
        self._expect = Expect.HEX if char == "u" else Expect.STRING
        return char in '"\\/bfnrtu'

    def _in_hex(self, char: str) -> bool:
        self._rest += char
        if len(self._rest) == 4:
            self._expect = Expect.STRING
        return char in _HEX

    def _in_literal(self, tiling: Tiling, char: str) -> bool:
        expected, self._rest = self._rest[0], self._rest[1:]
        if not self._rest and char == expected:
            self._end_scalar(tiling)
        return char == expected

    def _end_scalar(self, tiling: Tiling) -> None:
        """A scalar is whole: the unit that leads to it closes."""
        tiling.close(kind=self._kind())
        self._expect = Expect.COMMA if self._stack else Expect.NOTHING

    def _kind(self) -> str:
        """What a scalar is here."""
        if not self._stack:
            return "value"
        return "member" if self._stack[-1] == "{" else "element"
