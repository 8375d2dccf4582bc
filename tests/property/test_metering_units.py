"""Units of any text: independent of chunking, a cover without gaps, closed once and for good."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from metering_passing import assert_passing_is_reading

from metering.semantic import Segmenter, Unit

# fmt: off
PIECES = st.sampled_from([
    "Hello. ", "world", "lower", "\n", "\n\n", "```python\n", "```\n", "```json\n", "~~~\n", "`",
    "{", "}", "[", "]", '"a": ', '"x"', "1", ",", ": ", "true", "-1.5e3", "\\", "\\u00e9",
    "def f(x):\n", "    return x\n", "@dec\n", "'''", '"', "(", ")", "# c\n", "if x: y; z",
    "else:\n", "case x:\n", "- item", "* ", "1. ", "| a |", "|---|\n", "---\n", "> ", "## T\n",
    "```js\n", "```tsx\n", "```sql\n", "```bash\n", "function f() {\n", "foo(() => {\n", "});\n",
    "}\n", "if (a)", " else ", "const x = ", "`${", "/", "//", "/*", "*/", "<b>", "</b>", ";", ";;",
    "class A {", "switch (a) {\n", "case 1:", "return ", ".then(x)\n", "=> ", "@a()\n", " = ",
    "SELECT a\n", "--", "$$", "CREATE TRIGGER x ", "BEGIN ", "END;", "DELIMITER //\n",
    "if a; then\n", "fi\n", "for x in y; do ", "done", "case $x in\n", "a) ", "esac\n", "$(", "${",
    "<<EOF\n", "EOF\n", "&&", "|", "f() {\n", "{ ", "\\\n", "「", "」", "と", "No. 5",
    "好。", "！", "é", "🎉", "e.g. ", "Mr. ", "...", "3.14", "?", "\0", "\t", "\r\n", "\ufeff",
    "```mysql\n", "```tsql\n", "# it's\n", "SELECT [", "\\'", "<T,>", "<T extends ", "(x: T) => ",
    "cat <<A; ", "cat <<A |\n", "A\n", ";&", "&", '{"a":1}\n', "[2]\n", "f({_:", "`${",
])
# fmt: on
LANGUAGES = ("py", "js", "tsx", "sql", "mysql", "tsql", "sh", "json")
FENCES = st.sampled_from(["", "\ufeff", *(f"```{language}\n" for language in LANGUAGES)])
SHAPED = st.lists(PIECES, max_size=40).map("".join).map(str.encode)
CODE = st.builds(lambda fence, body: fence.encode() + body, FENCES, SHAPED)
TEXTS = st.one_of(SHAPED, CODE, st.binary(max_size=80), st.text(max_size=60).map(str.encode))


def cut_up(data: bytes, places: list[int]) -> list[bytes]:
    bounds = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(bounds)]


def units_of(chunks: list[bytes], *, stopped: bool) -> list[Unit]:
    segmenter = Segmenter()
    found = [unit for chunk in chunks for unit in segmenter.feed(chunk)]
    return found + segmenter.finish(stopped=stopped)


@given(TEXTS, st.lists(st.integers(0, 300), max_size=8), st.booleans())
def test_units_do_not_depend_on_chunking(data: bytes, places: list[int], stopped: bool) -> None:
    whole = units_of([data], stopped=stopped)
    assert units_of(cut_up(data, places), stopped=stopped) == whole
    assert units_of([data[at : at + 1] for at in range(len(data))], stopped=stopped) == whole


@given(TEXTS)
def test_what_a_scanner_passes_over_leaves_it_as_if_it_had_read_it(data: bytes) -> None:
    assert_passing_is_reading(data)


@given(TEXTS, st.booleans())
def test_units_cover_every_byte_once(data: bytes, stopped: bool) -> None:
    at = 0
    for unit in units_of([data], stopped=stopped):
        assert unit.start == at
        assert unit.end > at
        at = unit.end
    assert at == len(data)


@given(TEXTS, TEXTS, st.booleans())
def test_a_closed_unit_never_reopens(data: bytes, more: bytes, stopped: bool) -> None:
    segmenter = Segmenter()
    closed = segmenter.feed(data)
    assert units_of([data + more], stopped=stopped)[: len(closed)] == closed


@given(TEXTS, TEXTS, st.booleans())
def test_looking_ahead_is_what_finishing_would_say(data: bytes, more: bytes, stopped: bool) -> None:
    segmenter = Segmenter()
    closed = segmenter.feed(data)
    open_units = segmenter.open_units(stopped=stopped)
    assert closed + open_units == units_of([data], stopped=stopped)
    later = closed + segmenter.feed(more) + segmenter.finish(stopped=stopped)
    assert later == units_of([data + more], stopped=stopped)
