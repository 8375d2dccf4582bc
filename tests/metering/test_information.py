"""Information bits, in whole microbits."""

from __future__ import annotations

import math

import pytest

from metering.information import clip_ubits, total_ubits


def test_halving_the_probability_is_one_bit() -> None:
    assert total_ubits([-693_147], 50_000) == 1_000_000
    assert total_ubits([0], 50_000) == 0


def test_microbits_agree_with_the_mathematics() -> None:
    for unats in range(-9_000_000, 0, 12_345):
        assert total_ubits([unats], 2**20) == round(-unats / math.log(2))


@pytest.mark.parametrize(
    ("vocab_size", "clip"), [(2, 1_000_000), (1024, 10_000_000), (3, 1_584_963)]
)
def test_no_token_tells_more_than_the_vocabulary_holds(vocab_size: int, clip: int) -> None:
    assert clip_ubits(vocab_size) == clip
    assert total_ubits([-(10**9)], vocab_size) == clip


def test_a_missing_score_makes_the_total_unknown() -> None:
    assert total_ubits([-693_147, -693_147], 50_000) == 2_000_000
    assert total_ubits([-693_147, None], 50_000) is None
    assert total_ubits([], 50_000) == 0
