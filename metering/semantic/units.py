"""A semantic unit, and the version of the rules that find it.

| kind | what it is |
|---|---|
| `sentence` | a sentence of prose, or a line of it that the next line does not go on with |
| `heading`, `list_item`, `table_row` | Markdown's own clauses |
| `statement`, `header`, `comment` | code: a simple statement, a compound's header, a comment |
| `bracket` | what closes a container of JSON or a compound of code: `]`, `});`, `fi`, `END;` |
| `member`, `element`, `value` | JSON: a scalar in either, or alone; `member` of a class too |
| `line` | a line of any other fenced text |
| `oversize` | a piece of text that went on for 64 KiB without closing: never complete |
| `blank` | an output of nothing but white space and fences |
"""

from __future__ import annotations

from importlib.metadata import version

import msgspec

from metering.events import UnitState

GRAMMARS = ("python", "javascript", "typescript", "sql", "bash")
SEGMENTER = "+".join(
    ["units/1", *(f"ts-{name}@{version(f'tree-sitter-{name}')}" for name in GRAMMARS)]
)

OPEN_BYTES_MAX = 64 * 1024  # text that stays open for longer is cut as `oversize`


class Unit(msgspec.Struct, frozen=True, gc=False):
    """A stretch of the text, `start:end` half-open in bytes. Units cover the text without gaps."""

    kind: str
    state: UnitState
    start: int
    end: int
