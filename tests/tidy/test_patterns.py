"""A pattern that says where a text ends means its end: Python's `$` lets a line's end follow."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tidy_sources import modules, text

from api.schemas import LINES


def whole_patterns(path: Path) -> Iterator[str]:
    """The constants of a module that are patterns of a whole text."""
    for node in ast.walk(ast.parse(text(path))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            pattern = node.value
            if pattern.startswith("^") and pattern.endswith("$"):
                yield pattern


def test_only_prose_may_end_with_a_lines_end() -> None:
    found = {pattern: path for path in modules() for pattern in whole_patterns(path)}
    assert len(found) > 10
    lax = [
        f"{path}: {pattern}"
        for pattern, path in found.items()
        if pattern != LINES and not pattern.endswith(r"(?!\n)$")
    ]
    assert lax == [], r"write (?!\n)$ in the place of $"


@pytest.mark.parametrize("text", ["a\n", "\n"])
def test_the_ending_that_is_asked_for_lets_no_lines_end_follow(text: str) -> None:
    assert re.search(r"^[^\n]*$", text)
    assert not re.search(r"^[^\n]*(?!\n)$", text)
    assert re.search(r"^[^\n]*(?!\n)$", text[:-1])
