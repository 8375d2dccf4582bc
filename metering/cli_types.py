"""What the command line takes where click's own types would let anything through.

The bounds are those of the API and of the database's columns, which SQLite doesn't hold.
"""

from __future__ import annotations

import math
import re
from typing import Any

import click

COUNT_MAX = 10**9  # what a 32-bit column takes, and the API


class FiniteRange(click.FloatRange):
    """A range of floats without "nan", which is below no limit and above none."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read a number; click says what is wrong with another text."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


class Prose(click.ParamType[str]):
    """A text for people, of so many characters; in lines where that is said."""

    name = "text"

    def __init__(self, most: int, *, in_lines: bool = False) -> None:
        self.most = most
        self.in_lines = in_lines

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Read a text; click says what is wrong with another."""
        lines = value.split("\n") if self.in_lines else [value]
        if len(value) > self.most or not all(map(str.isprintable, lines)):
            self.fail(f"at most {self.most} printable characters", param, ctx)
        return str(value)


class Word(click.ParamType[str]):
    """A text that matches a pattern as a whole, which `words` describe."""

    name = "text"

    def __init__(self, pattern: str, words: str) -> None:
        self.pattern = re.compile(pattern)
        self.words = words

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Read a text; click says what is wrong with another."""
        if self.pattern.fullmatch(value) is None:
            self.fail(f"{value[:40]!r} is not {self.words}", param, ctx)
        return str(value)


NAME = Prose(200)
REFERENCE = Word(r"[A-Za-z0-9_.:-]{1,40}", "1 to 40 of A-Z, a-z, 0-9 and _.:-")
LONG_REFERENCE = Word(r"[A-Za-z0-9_.:-]{1,64}", "1 to 64 of A-Z, a-z, 0-9 and _.:-")
EMAIL = Word(r"[^@\s\x00-\x1f]{1,100}@[^@\s\x00-\x1f]{1,99}", "an address such as pay@acme.example")
CURRENCY = Word("[A-Z]{3}", "a currency such as USD")
