"""From exact amounts to whole cents that add up."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.errors import InvalidAmount
from billing.invoices import minor_units

CENT = 10_000_000
amounts = st.integers(-(10**15), 10**15)


@given(st.lists(amounts, max_size=40), st.sampled_from([1, 10**6, CENT, 10**9]))
def test_lines_in_cents_add_up_to_the_total_and_none_is_off_by_a_cent(
    parts: list[int], minor: int
) -> None:
    total = minor_units.rounded(sum(parts), minor)
    fitted = minor_units.apportion(parts, total, minor)
    assert sum(fitted) == total
    assert all(
        abs(cents * minor - exact) < minor for cents, exact in zip(fitted, parts, strict=True)
    )


def test_a_total_that_is_not_theirs_is_refused() -> None:
    with pytest.raises(ValueError, match="not what these parts"):
        minor_units.apportion([CENT], 3, CENT)


@pytest.mark.parametrize(
    ("currency", "text"), [("USD", "10.50"), ("JPY", "1050"), ("KWD", "1.050"), ("CLF", "0.1050")]
)
def test_each_currency_has_its_own_decimals(currency: str, text: str) -> None:
    minor = minor_units.minor_nano(currency)
    assert minor_units.format_minor(1050, minor) == text
    assert minor_units.parse_minor(text, minor) == 1050


@given(amounts, st.sampled_from([1, 10**6, CENT, 10**9]))
def test_what_is_written_is_read_back(minor_count: int, minor: int) -> None:
    written = minor_units.format_minor(minor_count % 10**9, minor)
    assert minor_units.parse_minor(written, minor) == minor_count % 10**9


def test_an_amount_finer_than_a_cent_is_no_payment() -> None:
    with pytest.raises(InvalidAmount):
        minor_units.parse_minor("0.001", CENT)


@pytest.mark.parametrize(
    ("base", "percent", "expected"),
    [(1000, "19", 190), (50, "19", 10), (-50, "19", -10), (105, "8.875", 9), (1, "0", 0)],
)
def test_tax_is_rounded_half_away_from_zero(base: int, percent: str, expected: int) -> None:
    assert minor_units.tax(base, Decimal(percent)) == expected
