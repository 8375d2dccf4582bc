"""Cursors in links: opaque, and refused where they are not ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.exceptions import NotFoundException

from dashboards import cursors
from dashboards.cursors import SequencePosition, TimedPosition
from dashboards.injected import RECORD_ID


@given(st.integers(0, 2**63 - 1), st.from_regex(RECORD_ID, fullmatch=True))
def test_a_cursor_reads_back_to_its_position(at_us: int, identifier: str) -> None:
    cursor = cursors.encode((at_us, identifier))
    assert cursors.decode(cursor, TimedPosition) == TimedPosition(at_us, identifier)


def test_no_cursor_is_the_first_page() -> None:
    assert cursors.decode(None, SequencePosition) is None
    assert cursors.decode("", SequencePosition) is None


@pytest.mark.parametrize(
    "word",
    [
        "x",
        "é",
        "AAAA",
        cursors.encode("text"),
        cursors.encode((2**63, "req_1")),
        cursors.encode((-1, "req_1")),
        cursors.encode((1, "nul\0")),
        cursors.encode((1, "x" * 200)),
        cursors.encode((1,)),
    ],
)
def test_a_word_that_is_no_cursor_leads_to_no_page(word: str) -> None:
    with pytest.raises(NotFoundException):
        cursors.decode(word, TimedPosition)
