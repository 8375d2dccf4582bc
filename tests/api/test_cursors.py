from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import cursors
from api.errors import InvalidCursor


@given(
    moment=st.integers(-(2**63), 2**63 - 1),
    name=st.from_regex(r"[A-Za-z0-9_.:-]{1,64}", fullmatch=True),
)
def test_a_cursor_gives_back_its_position(moment: int, name: str) -> None:
    cursor = cursors.encode("keys", (moment, name))
    assert cursors.decode("keys", cursor) == (moment, name)
    assert cursors.decode_number("audit", cursors.encode("audit", moment)) == moment


def test_no_cursor_is_no_position() -> None:
    assert cursors.decode("keys", None) is None
    assert cursors.decode_number("audit", None) is None


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidCursor):
        cursors.decode("keys", text)


@pytest.mark.parametrize(
    "position",
    [(2**63, "a"), (-(2**63) - 1, "a"), (1, "a\0b"), (1, ""), (1, "a" * 65), (1,), (1.5, "a"), {}],
)
def test_a_forged_position_that_no_database_takes_is_refused(position: object) -> None:
    with pytest.raises(InvalidCursor):
        cursors.decode("keys", cursors.encode("keys", position))
    with pytest.raises(InvalidCursor):
        cursors.decode_number("audit", cursors.encode("audit", [position, 2**63]))


def test_a_cursor_of_another_listing_is_refused() -> None:
    with pytest.raises(InvalidCursor):
        cursors.decode("tenants", cursors.encode("keys", (1, "a")))


def test_a_page_has_a_next_one_only_if_there_is_more() -> None:
    rows = [1, 2, 3]
    shown, following = cursors.page("numbers", rows, 2, lambda row: row)
    assert shown == [1, 2]
    assert cursors.decode_number("numbers", following) == 2
    assert cursors.page("numbers", rows, 3, lambda row: row) == (rows, None)
