from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api import key_format


@pytest.mark.parametrize("test_mode", [False, True])
def test_a_minted_key_reads_back_as_itself(test_mode: bool) -> None:
    minted = key_format.mint(test_mode=test_mode)
    assert minted.text.startswith("dfk_test_" if test_mode else "dfk_live_")
    assert key_format.read(minted.text) == minted
    assert minted.key_id == f"key_{minted.text[9:25]}"


def test_no_two_keys_are_alike() -> None:
    minted = [key_format.mint(test_mode=False) for _ in range(50)]
    assert len({key.key_id for key in minted}) == len({key.sha256 for key in minted}) == 50


@given(position=st.integers(0, 74), replacement=st.characters(max_codepoint=0x250))
def test_one_wrong_character_is_noticed_without_asking_the_database(
    position: int, replacement: str
) -> None:
    text = "dfk_live_0000000000000000_" + "1" * 43
    text += key_format._checksum(text)
    assert len(text) == 75
    assert key_format.read(text) is not None
    wrong = text[:position] + replacement + text[position + 1 :]
    assert wrong == text or key_format.read(wrong) is None


@given(st.text())
def test_any_other_text_is_no_key(text: str) -> None:
    assert key_format.read(text) is None


def test_a_key_never_shows_its_secret_when_printed() -> None:
    minted = key_format.mint(test_mode=False)
    assert minted.text not in repr(minted)
    assert minted.text[26:] not in f"{minted}"
