"""The segmenter's own promises: held-back units, looking ahead, and bounds on hostile text."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from tree_sitter import Language, Parser, Tree

from metering.events import UnitState
from metering.semantic import Segmenter, Unit, python_grammar, script_grammar, shell, sql
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
    "script brackets": ("```js\n", "("),
    "script blocks": ("```js\n", "() => {\n"),
    "script closers": ("```js\n", "}"),
    "script objects": ("```ts\n", "type F = () => { a } & "),
    "script templates": ("```js\n", "`${"),
    "script comments": ("```js\nx\n", "//\n"),
    "script slashes": ("```js\n", "x / "),
    "script else": ("```js\n", "else "),
    "script callbacks": ("```js\nf(", "() => {}, "),
    "JSX": ("```jsx\nx = ", "<a>"),
    "type parameters": ("```tsx\nx = ", "<T,"),
    "lines of JSON": '{"a":[]}\n',
    "SQL quotes": ("```sql\n", "'"),
    "SQL tags": ("```sql\n", "$a"),
    "SQL words": ("```sql\n", "CREATE TRIGGER BEGIN "),
    "SQL comments": ("```sql\n", "/*"),
    "SQL names": ("```tsql\n", "[a]"),
    "SQL escapes": ("```mysql\n'", "\\'"),
    "SQL statements": ("```sql\n", "x;"),
    "shell quotes": ("```sh\n", '"$('),
    "shell cases": ("```sh\n", "case x in\na) "),
    "shell documents": ("```sh\n", "<<a "),
    "shell documents and commands": ("```sh\n", "<<a; b ;; "),
    "shell pipes": ("```sh\n", "a |\n"),
    "shell functions": ("```sh\n", "f()\n"),
    "shell lines": ("```sh\n", "if x; then\n"),
}


def held_bytes(state: object) -> int:
    """Size of all that the segmenter holds, characters counted once a place."""
    inner: Iterable[object] = ()
    if isinstance(state, list | tuple):
        inner = state
    elif type(state).__module__.startswith("metering."):
        names = {name for kind in type(state).__mro__ for name in getattr(kind, "__slots__", ())}
        inner = [getattr(state, name) for name in names]
    return sys.getsizeof(state) + sum(map(held_bytes, inner))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_is_covered_in_bounded_memory(name: str) -> None:
    pattern = HOSTILE[name]
    head, body = pattern if isinstance(pattern, tuple) else ("", pattern)
    unit = body.encode() if isinstance(body, str) else body
    data = head.encode() + unit * (80_000 // len(unit))
    segmenter = Segmenter()
    found = []
    held_bytes_max = 0
    for start in range(0, len(data), 997):
        found += segmenter.feed(data[start : start + 997])
        if start % (8 * 997) == 0:
            held_bytes_max = max(held_bytes_max, held_bytes(segmenter))
    found += segmenter.finish()
    at = 0
    for each in found:
        assert each.start == at
        at = each.end
    assert at == len(data)
    assert 0 < held_bytes_max < 8 * 1024 * 1024


READ_ONCE = {
    "one long statement": ("py", "x = [" + "1,\n" * 5000 + "]\n"),
    "many short ones": ("py", "x = y + 1\n" * 2000),
    "decorators": ("py", "@a\n" * 2000),
    "a string": ("py", "x = '''" + "a\n" * 8000 + "'''\n"),
    "lost brackets": ("py", "x = (1\nreturn\n" * 1000),
    "statements of a script": ("js", "x = y + 1;\n" * 2000),
    "a script's object": ("js", "x = {\n" + "a: 1,\n" * 5000 + "}\n"),
    "blocks in blocks": ("js", "f(() => {\n" * 400 + "})\n" * 400),
    "braces that open no block": ("ts", "type F = " + "(() => { a }) | " * 500 + "A;\n"),
    "blocks deep in brackets": ("js", "f(" * 500 + "()=>{}" + ",()=>{}" * 2000),
    "methods deep in objects": ("js", "f({_:" * 250 + "b(){}" + ",b(){}" * 2000),
    "blocks deep in elements": ("jsx", "f(" + "<a>{f(" * 160 + "()=>{}" + ",()=>{}" * 2000),
    "blocks deep in templates": ("ts", "`${" * 255 + "()=>{}" + ",()=>{}" * 2000),
    "lines that go on": ("js", "a\n  .b()\n" * 2000),
    "statements of SQL": ("sql", "select a from t;\nx;\n" * 1000),
    "lines of a shell": ("sh", "a | b\nif x; then y; fi\n" * 500),
    "a here-document": ("sh", "cat <<EOF\n" + "x\n" * 5000 + "EOF\n"),
}


@pytest.mark.parametrize("name", READ_ONCE)
def test_the_grammar_reads_a_bounded_multiple_of_the_text(
    name: str, monkeypatch: pytest.MonkeyPatch
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

    for module in (python_grammar, script_grammar, shell, sql):
        monkeypatch.setattr(module, "Parser", Counting)
    language, body = READ_ONCE[name]
    data = f"```{language}\n{body}```\n".encode()
    segmenter = Segmenter()
    for start in range(0, len(data), 7):
        segmenter.feed(data[start : start + 7])
    segmenter.finish(stopped=True)
    stand_ins = 40 * len(body.splitlines())
    assert 0 < read_bytes <= 10 * len(data) + stand_ins


UNITS_OF_TABLES = """
import hashlib, sys
from pathlib import Path
from metering.semantic import Segmenter
digest = hashlib.sha256()
for path in sys.argv[1:]:
    for text in Path(path).read_text().split("\\n\\n"):
        body = "\\n".join(line[2:] for line in text.split("\\n") if line.startswith(">"))
        segmenter = Segmenter()
        data = body.encode("utf-8", "surrogateescape")
        digest.update(repr(segmenter.feed(data) + segmenter.finish()).encode())
print(digest.hexdigest())
"""


def test_processes_agree_whatever_their_hashing_and_locale() -> None:
    tables = sorted(str(path) for path in Path(__file__).parent.glob("golden_*.txt"))
    assert tables
    digests = {
        subprocess.run(
            [sys.executable, "-X", "utf8", "-c", UNITS_OF_TABLES, *tables],
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": locale},
            check=True,
            capture_output=True,
        ).stdout
        for seed, locale in (("1", "C"), ("77", "tr_TR.UTF-8"))
    }
    assert len(digests) == 1
