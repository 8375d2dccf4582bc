"""One logical line of Python, read by tree-sitter: which clauses it holds, and whether it is valid.

Clauses are found line by line, so a line that only makes sense behind another (`else:`) is read
behind a stand-in for it. The grammar accepts a header without its body, which is what a header
is here: a clause of its own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import tree_sitter_python
from tree_sitter import Language, Node, Parser

PYTHON = Language(tree_sitter_python.language())

_STAND_INS = {
    "elif": "if _:\n pass\n",
    "else": "if _:\n pass\n",
    "except": "try:\n pass\n",
    "finally": "try:\n pass\n",
    "case": "match _:\n ",
}
_CLAUSES = frozenset(
    {"elif_clause", "else_clause", "except_clause", "finally_clause", "case_clause"}
)
_COMPOUNDS = _CLAUSES | {
    "if_statement",
    "for_statement",
    "while_statement",
    "try_statement",
    "with_statement",
    "match_statement",
    "function_definition",
    "class_definition",
}
_DEFINITIONS = frozenset({"function_definition", "class_definition"})
_WORD = re.compile(r"[a-z]+\b")


class Clause(NamedTuple):
    """A clause of a logical line: where it begins, in bytes of the line, and what it is."""

    start: int
    kind: str  # "statement" or "header"
    decoratable: bool = False  # a header that a decorator may stand before


def clauses(line: str) -> list[Clause] | None:
    """The clauses of a logical line without its indentation; null where it is not Python."""
    word = _WORD.match(line)
    stand_in = _STAND_INS.get(word[0], "") if word else ""
    found = _clauses(stand_in, line)
    if found is None and stand_in and line.startswith("case"):
        found = _clauses("", line)  # `case` is a name elsewhere
    return found


def is_decorator(line: str) -> bool:
    """Whether the logical line is a decorator, valid before a definition."""
    tree = Parser(PYTHON).parse(_encode(f"{line}\ndef _(): pass\n"))
    return not tree.root_node.has_error


def _clauses(before: str, line: str) -> list[Clause] | None:
    tree = Parser(PYTHON).parse(_encode(before + line))
    if tree.root_node.has_error:
        return None
    start = len(before)  # stand-ins are ASCII
    if before:
        node = tree.root_node.descendant_for_byte_range(start, start + 1)
        while node is not None and node.type not in _CLAUSES:
            node = node.parent
        statements = [] if node is None or node.start_byte != start else [node]
    else:
        statements = _statements(tree.root_node)
    found: list[Clause] = []
    for statement in statements:
        if statement.type not in _COMPOUNDS:
            found.append(Clause(statement.start_byte - start, "statement"))
            continue
        decoratable = statement.type in _DEFINITIONS
        found.append(Clause(statement.start_byte - start, "header", decoratable))
        found.extend(
            Clause(inner.start_byte - start, "statement")
            for block in statement.children
            if block.type == "block"
            for inner in _statements(block)
        )
    return found or None


def _statements(node: Node) -> list[Node]:
    return [child for child in node.named_children if child.type != "comment"]


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
