"""Prices of a period's quantities, model by model."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from billing_cases import tariff
from hypothesis import given
from hypothesis import strategies as st

from billing import tariffs
from billing.errors import InvalidTariff
from billing.invoices.period_models import Charged, PeriodLine, price
from billing.money import parse_nano
from billing.period_terms import MEASURES

TIERS = [
    {"up_to": "1000000", "per_million": "4"},
    {"up_to": "5000000", "per_million": "2", "flat": "1"},
    {"per_million": "1"},
]
CHARGED = {
    "output": Charged(Decimal(4_000_000), parse_nano("16")),
    "input": Charged(Decimal(1_000_000), parse_nano("1")),
}


def lines(quantity: int | str = 0, **terms: Any) -> list[PeriodLine]:
    entry = tariff(period={"entry": terms}).period
    assert entry is not None
    return price(entry["entry"], dict.fromkeys(MEASURES, Decimal(quantity)), CHARGED)


def total(quantity: int | str = 0, **terms: Any) -> int:
    return sum(line.amount_nano for line in lines(quantity, **terms))


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [(0, "0"), (1, "0.000004"), (1_000_000, "4"), (1_000_001, "5.000002"), (6_000_000, "14")],
)
def test_graduated_prices_each_tier_for_what_falls_into_it(quantity: int, expected: str) -> None:
    found = total(quantity, model="graduated", measure="output_tokens", tiers=TIERS)
    assert found == parse_nano(expected)


@pytest.mark.parametrize(
    ("quantity", "expected"), [(0, "0"), (1_000_000, "4"), (2_000_000, "5"), (6_000_000, "6")]
)
def test_volume_prices_everything_at_the_tier_reached(quantity: int, expected: str) -> None:
    found = total(quantity, model="volume", measure="output_tokens", tiers=TIERS)
    assert found == parse_nano(expected)


@pytest.mark.parametrize(
    ("quantity", "packages"), [(0, 0), (100, 0), (101, 1), (1100, 1), (1101, 2)]
)
def test_a_begun_package_is_a_whole_one(quantity: int, packages: int) -> None:
    found = total(
        quantity, model="package", measure="requests", size="1000", amount="3", free="100"
    )
    assert found == packages * parse_nano("3")


def test_a_flat_price_is_due_whatever_was_used() -> None:
    assert total(model="flat", amount="20") == parse_nano("20")


def test_a_percentage_is_of_what_requests_were_charged() -> None:
    assert total(model="percentage", percent="2.5") == parse_nano("0.425")
    assert total(model="percentage", percent="2.5", component="input") == parse_nano("0.025")
    assert total(model="percentage", percent="1", component="energy") == 0


def test_an_allowance_gives_the_free_part_back_at_its_average_price() -> None:
    assert total(model="allowance", component="output", free="1000000") == -parse_nano("4")


def test_an_allowance_never_gives_back_more_than_was_charged() -> None:
    assert total(model="allowance", component="output", free="9000000") == -parse_nano("16")
    assert total(model="allowance", component="energy", free="1") == 0


def test_bounds_are_lines_of_their_own() -> None:
    low = lines(model="percentage", percent="1", minimum="5")
    assert [line.detail for line in low] == ["all charges", "minimum"]
    assert sum(line.amount_nano for line in low) == parse_nano("5")
    assert total(model="percentage", percent="100", maximum="5") == parse_nano("5")


@given(st.integers(0, 10**10), st.integers(0, 10**10))
def test_using_more_never_costs_less_under_graduated_tiers(one: int, other: int) -> None:
    terms: dict[str, Any] = {"model": "graduated", "measure": "output_tokens", "tiers": TIERS}
    low, high = sorted((one, other))
    assert total(low, **terms) <= total(high, **terms)


@pytest.mark.parametrize(
    ("terms", "fault"),
    [
        ({"model": "flat"}, "period.entry.amount: missing"),
        ({"model": "flat", "amount": "1", "size": "2"}, "period.entry.size: the model flat"),
        ({"model": "wild"}, "period.entry.model: must be one of"),
        ({"model": "volume", "measure": "requests", "tiers": [{"up_to": "5"}]}, "has no up_to"),
        ({"model": "volume", "measure": "requests", "tiers": "x"}, "must be a list"),
        ({"model": "volume", "measure": "blocks", "tiers": TIERS}, "all_blocks are all of them"),
        (
            {
                "model": "volume",
                "measure": "requests",
                "tiers": [{"up_to": "5"}, {"up_to": "5"}, {}],
            },
            "up_to has to grow",
        ),
        ({"model": "percentage", "percent": "1", "minimum": "2", "maximum": "1"}, "above the maxi"),
    ],
)
def test_a_period_price_that_cannot_be_is_refused(terms: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidTariff, match=fault):
        tariff(period={"entry": terms})


def test_a_tariff_with_period_prices_is_read_back_as_it_was() -> None:
    made = tariff(
        input={"per_million": "1"},
        period={"tiers": {"model": "graduated", "measure": "requests", "tiers": TIERS}},
    )
    assert tariffs.parse(tariffs.to_yaml(made)) == made
    assert tariffs.parse(tariffs.canonical(made)) == made


def test_a_tariff_without_them_keeps_its_hash() -> None:
    assert "period" not in tariffs.document(tariff())
