"""Whether a clause of JavaScript or TypeScript is valid, and what a brace of it opens.

A clause is read by tree-sitter between stand-ins: before it for what it goes on with, behind it for
what it leaves open.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser


class Dialect(NamedTuple):
    """A language with its grammar."""

    language: Language
    jsx: bool


JAVASCRIPT = Dialect(Language(tree_sitter_javascript.language()), jsx=True)
TYPESCRIPT = Dialect(Language(tree_sitter_typescript.language_typescript()), jsx=False)
TSX = Dialect(Language(tree_sitter_typescript.language_tsx()), jsx=True)

STATEMENTS, CLASS, INTERFACE, ENUM, SWITCH = "statements", "class", "interface", "enum", "switch"

_BODIES = {
    "statement_block": STATEMENTS,
    "class_static_block": STATEMENTS,
    "class_body": CLASS,
    "interface_body": INTERFACE,
    "enum_body": ENUM,
    "switch_body": SWITCH,
}
# What a clause stands in; statements stand by themselves.
_AROUND = {
    CLASS: ("abstract class _{", "}"),
    INTERFACE: ("interface _{", "}"),
    ENUM: ("enum _{", "}"),
    SWITCH: ("switch(_){", "}"),
}
# What a clause goes on with, by its first word.
_BEFORE = {"else": "if(_){}", "catch": "try{}", "finally": "try{}"}
_BEHIND = {"do": "while(_);", "try": "finally{}"}
_OPENERS = {
    "(": "_(",
    "[": "[",
    "{": "{_:",
    "$": "${",
    "`": "`",
    "e": "{",
    "<": "<_>",
    "t": "<_ _=",
}
_CLOSERS = {"(": ")", "[": "]", "{": "}", "$": "}", "`": "`", "e": "}", "<": "</_>", "t": "/>"}
_CLOSING = ")]}`>"
_INNER = frozenset("$et")  # these stand inside the bracket before them
_WORD = re.compile(r"[a-z]+\b")


def accepts(dialect: Dialect, text: str, body: str) -> bool:
    """Whether a whole clause is valid in such a body."""
    before, behind = around(dialect, body)
    return not _parse(dialect, before + text + behind).has_error


def accepts_header(dialect: Dialect, text: str, body: str) -> bool:
    """Whether a header without its body is valid; an empty statement stands in for that."""
    before, behind = around(dialect, body)
    word = _word(text)
    text = _BEFORE.get(word, "") + text + " ;" + _BEHIND.get(word, "")
    return not _parse(dialect, before + text + behind).has_error


def accepts_rest(dialect: Dialect, text: str, opened: str) -> bool:
    """Whether a clause is valid that goes on behind a block, inside the brackets `opened`."""
    if len(opened) > _closed_max(text):
        return False
    return not _parse(dialect, lead(opened) + text).has_error


class Block(NamedTuple):
    """What a brace opens: its body, and whether the clause up to it is valid."""

    body: str
    is_valid: bool


def block(dialect: Dialect, text: str, opened: str, rest_of: str | None, body: str) -> Block | None:
    """What the brace that ends `text` opens; null where it is an object or a type.

    `opened`: the brackets open before it; `rest_of`: those that were open where the clause began,
    behind another block; null where it began by itself.
    """
    word = _word(text) if rest_of is None else ""
    if rest_of is None:
        before, behind = around(dialect, body)
        before += _BEFORE.get(word, "")
    else:
        outer = _outer(rest_of, opened, text)
        before, behind = lead(rest_of[outer:]), ""
        opened = opened[outer:]
    source = before + text
    closers = "".join(_CLOSERS[char] for char in reversed(_tags_as_one(opened)))
    root = _parse(dialect, source + "}" + closers + _BEHIND.get(word, "") + behind)
    at = len(source.encode("utf-8", "surrogateescape")) - 1
    node = root.descendant_for_byte_range(at, at + 1)
    holder = node.parent if node is not None else None
    kind = holder.type if holder is not None else ""
    if kind in _BODIES:
        return Block(_BODIES[kind], not root.has_error)
    return Block(STATEMENTS, is_valid=False) if kind == "ERROR" else None


def lead(opened: str) -> str:
    """A text that leads into a block inside such brackets."""
    return "_=" + "".join(_OPENERS[char] for char in _tags_as_one(opened)) + "()=>{"


def around(dialect: Dialect, body: str) -> tuple[str, str]:
    """What stands before and behind a clause in such a body."""
    before, behind = _AROUND.get(body, ("", ""))
    if dialect is JAVASCRIPT:
        before = before.removeprefix("abstract ")
    return before, behind


def _outer(rest_of: str, opened: str, text: str) -> int:
    """How many brackets, from the outermost on, can be left out where a clause is read.

    Of those that it doesn't close its validity depends on the innermost alone. Without the others
    what leads in to a clause is about as long as itself, however deep it stands.
    """
    outer = min(len(rest_of) - 1 - _closed_max(text), len(opened))
    while outer > 0 and rest_of[outer] in _INNER:
        outer -= 1
    return max(outer, 0)


def _closed_max(text: str) -> int:
    """The most brackets that a text can close: the `>` of a closing tag closes two."""
    return 2 * sum(map(text.count, _CLOSING))


def _tags_as_one(opened: str) -> str:
    """The brackets, with an element whose opening tag is open as that tag alone."""
    return opened.replace("<t", "t")


def _word(text: str) -> str:
    match = _WORD.match(text)
    return match[0] if match else ""


def _parse(dialect: Dialect, text: str) -> Node:
    return Parser(dialect.language).parse(text.encode("utf-8", "surrogateescape")).root_node
