from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvalidAmount
from billing.money import NANO_MAX, format_nano, parse_nano, plain, round_nano, split

amounts = st.integers(-NANO_MAX, NANO_MAX)


@given(amounts)
def test_an_amount_survives_its_text(nano: int) -> None:
    assert parse_nano(format_nano(nano)) == nano


@pytest.mark.parametrize(
    ("nano", "text"),
    [(0, "0"), (1, "0.000000001"), (250_000_000, "0.25"), (-1_500_000_000, "-1.5"), (10**10, "10")],
)
def test_amounts_print_short_and_plain(nano: int, text: str) -> None:
    assert format_nano(nano) == text


@pytest.mark.parametrize(
    "text",
    ["", "NaN", "Infinity", "1e3", "0.0000000001", "+1", "1.", ".5", "1,5", " 1", "1\n", "٣", "1_"],
)
def test_text_that_is_no_plain_amount_is_refused(text: str) -> None:
    with pytest.raises(InvalidAmount):
        parse_nano(text)


def test_amounts_beyond_64_bits_are_refused() -> None:
    with pytest.raises(InvalidAmount):
        parse_nano("9999999999")
    with pytest.raises(InvalidAmount):
        round_nano(Decimal(9999999999))


@pytest.mark.parametrize(
    ("amount", "nano"),
    [
        ("0.0000000005", 0),
        ("0.0000000015", 2),
        ("0.0000000025", 2),
        ("-0.0000000015", -2),
        ("0.00000000250000000000000000000001", 3),
    ],
)
def test_ties_go_to_the_even_nano_and_nothing_is_rounded_twice(amount: str, nano: int) -> None:
    assert round_nano(Decimal(amount)) == nano


@given(amounts, st.lists(st.integers(0, 10**12), min_size=1, max_size=20))
def test_a_split_adds_up_and_no_part_strays_from_its_share(total: int, weights: list[int]) -> None:
    if not sum(weights):
        with pytest.raises(InvalidAmount):
            split(total, weights)
        return
    parts = split(total, weights)
    assert sum(parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert abs(part * sum(weights) - total * weight) < sum(weights)


def test_what_a_split_leaves_goes_to_the_largest_remainders_first() -> None:
    assert split(10, [1, 1, 1]) == [4, 3, 3]
    assert split(-10, [1, 1, 1]) == [-4, -3, -3]
    assert split(5, [0, 3, 1]) == [0, 4, 1]


def test_decimals_print_without_exponent() -> None:
    assert plain(Decimal("1E-7")) == "0.0000001"
    assert plain(Decimal(100)) == "100"
    assert plain(Decimal("1.500")) == "1.5"
