"""The segmenter's own promises: held-back units, looking ahead, and bounds on hostile text."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from tree_sitter import Language, Parser, Tree

from metering.events import UnitState
from metering.semantic import Segmenter, Unit, python_grammar
from metering.semantic.json_text import DEPTH_MAX
from metering.semantic.units import OPEN_BYTES_MAX


def units_of(text: str | bytes, *, stopped: bool = True) -> list[Unit]:
    segmenter = Segmenter()
    data = text.encode() if isinstance(text, str) else text
    return segmenter.feed(data) + segmenter.finish(stopped=stopped)


def test_a_unit_closes_when_the_next_one_begins() -> None:
    segmenter = Segmenter()
    assert segmenter.feed(b"One. ") == []
    assert segmenter.feed(b"T") == [Unit("sentence", UnitState.COMPLETE, 0, 5)]
    assert segmenter.feed(b"wo") == []


def test_looking_at_open_units_changes_nothing() -> None:
    segmenter = Segmenter()
    segmenter.feed(b"```python\ndef f(x):\n    return (x,")
    open_units = segmenter.open_units()
    assert [unit.kind for unit in open_units] == ["statement"]
    assert open_units[0].state is UnitState.FRAGMENT
    assert segmenter.open_units() == open_units
    assert segmenter.feed(b")\n```\nEnd")[0].state is UnitState.COMPLETE


def test_a_copy_goes_its_own_way() -> None:
    segmenter = Segmenter()
    segmenter.feed('Half of an "é'.encode()[:-1])
    twin = segmenter.copy()
    assert twin.feed(b'\xa9" is. Ok') == segmenter.feed(b'\xa9" is. Ok')
    assert twin.finish(stopped=True) == segmenter.finish(stopped=True)


def test_text_that_never_closes_is_cut_at_its_limit() -> None:
    units = units_of("a" * (2 * OPEN_BYTES_MAX + 10) + ". Then.")
    assert [(unit.kind, unit.state) for unit in units] == [
        ("oversize", UnitState.FRAGMENT),
        ("oversize", UnitState.FRAGMENT),
        ("oversize", UnitState.FRAGMENT),
        ("sentence", UnitState.COMPLETE),
    ]
    assert units[0].end == OPEN_BYTES_MAX


def test_an_oversize_string_of_json_does_not_lose_the_document() -> None:
    units = units_of('["' + "x" * OPEN_BYTES_MAX + '", 2]')
    assert [unit.kind for unit in units] == ["oversize", "oversize", "element", "bracket"]


def test_an_oversize_statement_does_not_lose_the_block() -> None:
    text = "```python\nx = [" + "1, " * 30_000 + "]\ny = 2\n```\n"
    assert [unit.kind for unit in units_of(text)] == ["oversize", "oversize", "statement"]


def test_nesting_beyond_the_limit_is_not_read_as_json() -> None:
    deep = "[" * DEPTH_MAX + "1" + "]" * DEPTH_MAX
    assert [unit.kind for unit in units_of(deep)] == ["element"] + ["bracket"] * DEPTH_MAX
    assert [unit.kind for unit in units_of(f"[{deep}]")] == ["sentence"]


HOSTILE = {
    "one letter": "a",
    "white space": " ",
    "new lines": "\n",
    "NUL": "\0",
    "invalid": b"\xff",
    "lone surrogates": b"\xed\xa0\x80",
    "brackets": "[",
    "objects": '{"a":',
    "digits in JSON": ("[", "1"),
    "back-quotes": "`",
    "fences": "```\n",
    "rules": "- ",
    "rules in lines": "- " * 250 + "\n",
    "pipes": "|",
    "quotes": "> ",
    "full stops": ".",
    "Python brackets": ("```py\n", "("),
    "Python operators": ("```py\n", "- * / "),
    "Python mismatch": ("```py\n", "[)"),
    "Python string": ("```py\n'''", "a\n"),
    "Python decorators": ("```py\n", "@a\n"),
    "Python lines": ("```py\n", "= x\n"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_covered_in_bounded_memory(name: str) -> None:
    pattern = HOSTILE[name]
    head, body = pattern if isinstance(pattern, tuple) else ("", pattern)
    unit = body.encode() if isinstance(body, str) else body
    data = head.encode() + unit * (80_000 // len(unit))
    tracemalloc.start()
    try:
        segmenter = Segmenter()
        found = []
        for start in range(0, len(data), 997):
            found += segmenter.feed(data[start : start + 997])
        found += segmenter.finish()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    at = 0
    for each in found:
        assert each.start == at
        at = each.end
    assert at == len(data)
    assert peak_bytes < 16 * 1024 * 1024


@pytest.mark.parametrize(
    "body",
    [
        "x = [" + "1,\n" * 5000 + "]\n",
        "x = y + 1\n" * 2000,
        "@a\n" * 2000,
        "x = '''" + "a\n" * 8000 + "'''\n",
        "x = (1\nreturn\n" * 1000,
    ],
    ids=["one long statement", "many short ones", "decorators", "a string", "lost brackets"],
)
def test_the_grammar_reads_no_more_than_twice_the_text(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line is read when it ends, not when it grows, so work is linear in the text."""
    read_bytes = 0

    class Counting:
        def __init__(self, language: Language) -> None:
            self._parser = Parser(language)

        def parse(self, text: bytes) -> Tree:
            nonlocal read_bytes
            read_bytes += len(text)
            return self._parser.parse(text)

    monkeypatch.setattr(python_grammar, "Parser", Counting)
    data = f"```python\n{body}```\n".encode()
    segmenter = Segmenter()
    for start in range(0, len(data), 7):
        segmenter.feed(data[start : start + 7])
    segmenter.finish(stopped=True)
    stand_ins = 20 * body.count("@")
    assert read_bytes <= 2 * len(data) + stand_ins


def test_the_same_text_has_the_same_units_in_every_order_of_dictionaries() -> None:
    """Nothing depends on hashing, so nothing differs between processes."""
    generator = random.Random(3)
    words = ["One. ", "```py\n", "x = 1\n", "```\n", "- a\n", "| b |\n", "好。", '{"a": 1}']
    texts = ["".join(generator.choices(words, k=20)) for _ in range(20)]
    first = [units_of(text) for text in texts]
    assert [units_of(text) for text in texts] == first
