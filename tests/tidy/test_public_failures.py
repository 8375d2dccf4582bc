"""What `docs/public-failures.md` says of tests is so: they exist, and run as many examples."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import settings
from tidy_sources import text, tracked

PAGE, HISTORIES = text(Path("docs/public-failures.md")).split("## Histories at random")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
ROWS = [row for row in re.findall(r"^\| (.*) \|$", PAGE, re.MULTILINE) if "#" in row]
COUNTED = re.findall(
    r"^\| `(tests/[\w/]+\.py)::(\w+)`(?:, and (\d+) more)? \| (.*) \| (\d+)(?:, (\S+))?.* \|$",
    HISTORIES,
    re.MULTILINE,
)


def functions(path: str) -> dict[str, ast.FunctionDef]:
    tree = ast.parse(text(Path(path)))
    return {each.name: each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}


def examples(test: ast.FunctionDef) -> int:
    """What a test says of itself, or of what it drives; else what Hypothesis does by default."""
    for each in ast.walk(test):
        if isinstance(each, ast.keyword) and each.arg in ("examples", "max_examples"):
            value = each.value.values[-1] if isinstance(each.value, ast.BoolOp) else each.value
            assert isinstance(value, ast.Constant)
            return int(value.value)
    return settings.default.max_examples


@pytest.mark.parametrize("row", ROWS)
def test_every_public_failure_is_held_by_tests_that_exist(row: str) -> None:
    reported, _, held = row.split(" | ")
    assert re.search(r"#\d+", reported)
    named = TEST.findall(held)
    assert named
    for path, name in named:
        assert Path(path) in tracked()
        assert not name or name in functions(path)


@pytest.mark.parametrize(("path", "name", "more", "what", "first", "second"), COUNTED)
def test_histories_are_as_many_and_as_long_as_stated(
    path: str, name: str, more: str, what: str, first: str, second: str
) -> None:
    found = functions(path)
    assert examples(found[name]) == int(first)
    if second.isdigit():
        assert examples(found[name.replace("_on_sqlite", "_on_postgresql")]) == int(second)
    if more:
        given = [each for each in found.values() if "given(" in ast.unparse(each)]
        assert len(given) == 1 + int(more)
    if steps := re.match(r"(\d+) steps", what):
        assert f"stateful_step_count={steps[1]}," in text(Path(path))


def test_every_state_machine_is_counted() -> None:
    driven = {
        path.as_posix()
        for path in tracked()
        if path.parts[:2] == ("tests", "property") and "run_state_machine_as_test" in text(path)
    }
    assert driven <= {path for path, *_ in COUNTED}
    assert len(COUNTED) > 9
