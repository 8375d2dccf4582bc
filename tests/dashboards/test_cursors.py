"""Cursors in links: opaque, and refused where they are not ours."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar.exceptions import NotFoundException

from dashboards import cursors
from dashboards.cursors import TimedPosition


@given(st.integers(0, 2**62), st.text(max_size=64))
def test_a_cursor_reads_back_to_its_position(at_us: int, identifier: str) -> None:
    cursor = cursors.encode((at_us, identifier))
    assert cursors.decode(cursor, TimedPosition) == TimedPosition(at_us, identifier)


def test_no_cursor_is_the_first_page() -> None:
    assert cursors.decode(None, int) is None
    assert cursors.decode("", int) is None


@pytest.mark.parametrize("word", ["x", "é", "AAAA", cursors.encode("text"), cursors.encode(10**30)])
def test_a_word_that_is_no_cursor_leads_to_no_page(word: str) -> None:
    with pytest.raises(NotFoundException):
        cursors.decode(word, TimedPosition)
