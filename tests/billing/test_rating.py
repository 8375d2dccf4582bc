"""Prices by example: each case is worked out by hand."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from billing_cases import energy, nothing_emitted, summary, tariff, unit

from billing.errors import UnratableSummary
from billing.rating import Charge, Component, green_discount_nano, rate, waive
from metering.events import EndedBy, EnergyClass, EnergySummary, RequestStatus

# 100 nano a prompt token, 400 an output token at multiplier 1.
INPUT = {"per_million": "0.1"}
OUTPUT = {
    "per_million": "0.4",
    "units": {"complete": "0.9", "fragment": "1.25"},
    "tiers": {"reduced": "0.85", "review": "0.5"},
}


def rows(charge: Charge) -> list[tuple[str, str, str, int]]:
    return [
        (line.component, line.detail, str(line.quantity.normalize()), line.amount_nano)
        for line in charge.lines
    ]


def test_output_is_grouped_by_the_units_state_and_tier() -> None:
    request = summary(
        unit(10, "complete", "standard"),
        unit(5, "complete", "reduced"),
        unit(3, "complete", "standard"),
        unit(2, "fragment", "review"),
        unattached_tokens=1,
        ended_by=EndedBy.TENANT,
    )
    assert rows(rate(request, tariff(input=INPUT, output=OUTPUT), review_fee=False)) == [
        ("input", "", "2E+1", 2_000),
        ("output", "complete/standard", "13", 13 * 360),
        ("output", "complete/reduced", "5", 5 * 306),
        ("output", "fragment/review", "2", 2 * 250),
        ("output", "unattached", "1", 400),
    ]


@pytest.mark.parametrize(
    ("ended_by", "detail", "amount"),
    [
        (EndedBy.TENANT, "fragment/standard", 500),
        (EndedBy.MODEL, "fragment/standard", 500),
        (EndedBy.OPERATOR, "base/standard", 400),
    ],
)
def test_text_that_we_cut_short_costs_no_premium(
    ended_by: EndedBy, detail: str, amount: int
) -> None:
    request = summary(unit(9), unit(1, "fragment"), ended_by=ended_by)
    charge = rate(request, tariff(output=OUTPUT), review_fee=False)
    assert rows(charge)[1] == ("output", detail, "1", amount)


def test_tokens_without_a_score_cost_the_cheapest_tiers_price() -> None:
    request = summary(unit(10, "complete", None), confidence=None, information_ubits=None)
    charge = rate(request, tariff(output=OUTPUT), review_fee=False)
    assert rows(charge) == [("output", "complete/unscored", "1E+1", 10 * 180)]


def test_a_unit_in_which_no_token_ends_has_no_line() -> None:
    request = summary(unit(10), unit(0, "complete", None))
    assert len(rate(request, tariff(output=OUTPUT), review_fee=False).lines) == 1


ENERGY = {"per_million": {"measured": "2", "estimated": "1"}, "cap_joules_per_token": "1"}


@pytest.mark.parametrize(
    ("share", "line"),
    [
        (energy("estimated", 12_345_678), ("energy", "estimated", "12.3", 12_300)),
        (energy("measured", 12_345_678), ("energy", "measured", "12.3", 24_600)),
        (energy("measured", 31_000_000), ("energy", "measured, capped", "3E+1", 60_000)),
        (energy("estimated", 0), ("energy", "estimated", "0", 0)),
        (energy("reported", 1_000_000), ("energy", "reported, not charged by this tariff", "0", 0)),
        (energy("unavailable", None), ("energy", "unavailable", "0", 0)),
    ],
)
def test_joules_are_charged_as_shown_by_class_and_up_to_the_cap(
    share: EnergySummary, line: tuple[str, str, str, int]
) -> None:
    request = summary(unit(10), energy=share)  # 20 tokens in, 10 out: at most 30 J
    assert rows(rate(request, tariff(energy=ENERGY), review_fee=False)) == [line]


def test_the_green_price_is_for_requests_that_energy_placed_and_the_discount_is_known() -> None:
    terms, plain = tariff(energy=ENERGY | {"green": "0.75"}), tariff(energy=ENERGY)
    request = summary(unit(10), energy=energy("measured", 12_345_678))
    green = msgspec.structs.replace(request, green=True)
    for each, priced_by, line, discount in (
        (request, terms, ("energy", "measured", "12.3", 24_600), None),
        (green, terms, ("energy", "measured, green", "12.3", 18_450), 24_600 - 18_450),
        (green, plain, ("energy", "measured", "12.3", 24_600), None),
    ):
        charge = rate(each, priced_by, review_fee=False)
        assert rows(charge) == [line]
        assert green_discount_nano(charge.lines, each, priced_by) == discount
    assert green_discount_nano(waive("test mode").lines, green, terms) is None


def test_information_is_charged_up_to_its_cap_and_zero_is_not_missing() -> None:
    terms = tariff(information={"per_million": "1", "cap_bits_per_token": "2"})
    for ubits, line in (
        (7_500_000, ("information", "", "7.5", 7_500)),
        (20_000_001, ("information", "capped", "2E+1", 20_000)),
        (0, ("information", "", "0", 0)),
        (None, ("information", "unavailable", "0", 0)),
    ):
        request = summary(unit(10), information_ubits=ubits)
        assert rows(rate(request, terms, review_fee=False)) == [line]


def test_verified_blocks_are_charged_each() -> None:
    terms = tariff(blocks={"per_million": "5"})
    request = summary(unit(10), verified_blocks=3)
    assert rows(rate(request, terms, review_fee=False)) == [("blocks", "", "3", 15_000)]


@pytest.mark.parametrize(
    ("request_terms", "extra", "total"),
    [
        ({"fee": "0.000001"}, [("request", "", "1", 1_000)], 5_000),
        (
            {"fee": "0.000001", "minimum": "0.000009"},
            [("request", "", "1", 1_000), ("minimum", "", "1", 4_000)],
            9_000,
        ),
        ({"minimum": "0.000004"}, [], 4_000),
        ({"maximum": "0.000003"}, [("maximum", "", "1", -1_000)], 3_000),
    ],
)
def test_minimum_and_maximum_are_lines_of_their_own(
    request_terms: dict[str, str], extra: list[Any], total: int
) -> None:
    terms = tariff(output={"per_million": "0.4"}, request=request_terms)
    charge = rate(summary(unit(10)), terms, review_fee=False)
    assert rows(charge)[1:] == extra
    assert charge.total_nano == total


def test_the_review_fee_is_not_capped_by_the_maximum() -> None:
    terms = tariff(
        output={"per_million": "0.4"}, request={"maximum": "0.000003"}, review={"fee": "0.25"}
    )
    charge = rate(summary(unit(10)), terms, review_fee=True)
    assert charge.of(Component.REVIEW) == 250_000_000
    assert charge.total_nano == 250_003_000


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"status": RequestStatus.REFUSED, "ended_by": EndedBy.TENANT}, "refused before it ran"),
        (
            {"status": RequestStatus.FAILED, "ended_by": EndedBy.OPERATOR},
            "ended by the operator without output",
        ),
    ],
)
def test_a_request_that_we_failed_before_its_first_token_costs_nothing(
    fields: dict[str, Any], reason: str
) -> None:
    terms = tariff(
        input=INPUT, output=OUTPUT, energy=ENERGY, request={"fee": "0.1", "minimum": "1"}
    )
    charge = rate(nothing_emitted(**fields), terms, review_fee=False)
    assert rows(charge) == [("waived", reason, "1", 0)]


def test_a_tenant_that_cancels_before_the_first_token_pays_for_its_input() -> None:
    cancelled = nothing_emitted(status=RequestStatus.CANCELLED, ended_by=EndedBy.TENANT)
    charge = rate(cancelled, tariff(input=INPUT, output=OUTPUT), review_fee=False)
    assert charge.total_nano == 2_000


def test_a_tariff_that_prices_nothing_here_says_so() -> None:
    charge = rate(summary(), tariff(request={"fee": "0"}), review_fee=False)
    assert rows(charge) == [("waived", "nothing in it is priced by this tariff", "1", 0)]


def test_zero_tokens_are_zero_and_not_estimated() -> None:
    request = nothing_emitted(input_tokens=0, ended_by=EndedBy.MODEL)
    assert rate(request, tariff(), review_fee=False).total_nano == 0


def test_a_summary_that_contradicts_itself_is_not_charged_at_all() -> None:
    for wrong in (summary(unit(10), output_tokens=11), summary(unit(10), output_tokens=9)):
        with pytest.raises(UnratableSummary, match="req_1"):
            rate(wrong, tariff(), review_fee=False)


def test_each_line_rounds_half_to_even_once() -> None:
    # 0.0005 USD a million is half a nano a token.
    terms = tariff(input={"per_million": "0.0005"})
    for tokens, nano in ((1, 0), (2, 1), (3, 2), (5, 2), (7, 4)):
        charge = rate(summary(input_tokens=tokens), terms, review_fee=False)
        assert charge.total_nano == nano


def test_prices_far_below_a_nano_add_up_before_they_are_rounded() -> None:
    terms = tariff(
        output={
            "per_million": "0.000000000001",
            "units": {"complete": "0.333333"},
            "tiers": {"standard": "0.777777"},
        }
    )
    request = summary(unit(400))
    (line,) = rate(request, terms, review_fee=False).lines
    assert line.unit_price == Decimal("0.000000000000000001") * Decimal("0.333333") * Decimal(
        "0.777777"
    )
    assert line.amount_nano == 0


def test_classes_of_energy_are_never_mixed() -> None:
    only = {"per_million": {"measured": "2"}, "cap_joules_per_token": "1"}
    for kind in EnergyClass:
        uj = None if kind is EnergyClass.UNAVAILABLE else 1_000_000
        charge = rate(summary(energy=energy(kind, uj)), tariff(energy=only), review_fee=False)
        assert charge.total_nano == (2_000 if kind is EnergyClass.MEASURED else 0)
