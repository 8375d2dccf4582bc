"""Quotes by example; that they bound every charge is in `tests/property/test_rating.py`."""

from __future__ import annotations

from decimal import Decimal

from billing_cases import energy, summary, tariff, unit

from billing.quotes import expected, if_stopped, next_tokens, worst_case
from billing.rating import rate
from billing.tariffs import shipped
from billing.typical import Typical, typical_of
from metering.events import EndedBy

TERMS = tariff(
    input={"per_million": "0.1"},
    output={"per_million": "0.4", "units": {"complete": "0.9", "fragment": "1.25"}},
    energy={"per_million": {"measured": "2", "estimated": "1"}, "cap_joules_per_token": "1"},
    review={"fee": "0.25"},
)


def test_the_worst_case_is_the_dearest_state_at_the_energy_cap() -> None:
    assert worst_case(TERMS, 20, 10, review=False) == 20 * 100 + 10 * 500 + 30 * 2_000
    assert worst_case(TERMS, 20, 10, review=True) == 20 * 100 + 10 * 500 + 30 * 2_000 + 250_000_000


def test_prices_of_whole_nanos_need_no_allowance_for_rounding() -> None:
    assert worst_case(shipped()["token"], 1_000, 1_000, review=False) == 100_000 + 400_000


def test_lines_that_all_round_up_stay_within_the_worst_case() -> None:
    # 0.6 nano a token, rounded to 1 in each of four lines of one token.
    terms = tariff(output={"per_million": "0.0006"})
    request = summary(
        unit(1, tier="standard"),
        unit(1, tier="reduced"),
        unit(1, tier="review"),
        unit(1, tier=None),
    )
    assert rate(request, terms, review_fee=False).total_nano == 4
    assert worst_case(terms, 0, 4, review=False) >= 4
    assert next_tokens(terms, request, 0, review=False) >= 4


def test_stopping_here_costs_at_most_the_open_text_as_fragment_and_energy_at_its_cap() -> None:
    so_far = summary(unit(8), unit(2, "fragment"), ended_by=EndedBy.OPERATOR, energy=energy())
    assert if_stopped(TERMS, so_far, review=False) == 2_000 + 8 * 360 + 2 * 500 + 30 * 2_000


def test_where_fragments_are_cheaper_stopping_by_our_decision_is_the_dearer_way() -> None:
    terms = tariff(output={"per_million": "0.4", "units": {"fragment": "0.5"}})
    so_far = summary(unit(10, "fragment"), ended_by=EndedBy.TENANT)
    assert if_stopped(terms, so_far, review=False) == 10 * 400


def test_units_that_closed_keep_their_price_and_the_last_one_may_still_change() -> None:
    so_far = summary(unit(8), unit(2))
    ahead = next_tokens(TERMS, so_far, 5, review=False)
    assert ahead == 2_000 + 8 * 360 + 7 * 500 + 35 * 2_000


def test_what_is_expected_takes_what_usually_happens() -> None:
    usual = Typical(
        complete_share=Decimal(1),
        tier_shares=(Decimal(1), Decimal(0), Decimal(0)),
        review_share=Decimal("0.1"),
        energy_class="estimated",
        joules_per_token=Decimal("0.5"),
    )
    assert expected(TERMS, 20, 10, review=False, typical=usual) == 2_000 + 3_600 + 15_000
    assert (
        expected(TERMS, 20, 10, review=True, typical=usual) == 2_000 + 3_600 + 15_000 + 25 * 10**6
    )


def test_without_any_measure_the_expectation_stays_on_the_safe_side() -> None:
    guess = expected(TERMS, 20, 10, review=False)
    assert 2_000 + 30 * 2_000 < guess <= worst_case(TERMS, 20, 10, review=False)


def test_what_is_typical_is_had_from_requests_and_never_mixes_classes() -> None:
    seen = [
        summary(unit(6), unit(4, "fragment", "review"), energy=energy("measured", 30_000_000)),
        summary(unit(10), energy=energy("measured", 60_000_000), review_reason="audit"),
        summary(unit(10), energy=energy("estimated", 900_000_000)),
        summary(unit(10, tier=None), energy=energy("unavailable", None), information_ubits=None),
    ]
    usual = typical_of(seen)
    assert usual.complete_share == Decimal("0.9")
    assert usual.tier_shares[2] == Decimal("0.133333")
    assert (usual.energy_class, usual.joules_per_token) == ("measured", Decimal("1.5"))
    assert usual.bits_per_token == Decimal("0.75")
    assert usual.review_share == Decimal("0.25")


def test_what_nobody_measured_stays_unknown() -> None:
    usual = typical_of([summary(energy=energy("unavailable", None), information_ubits=None)])
    assert usual.joules_per_token is None
    assert usual.bits_per_token is None
    assert typical_of([]) == Typical()
