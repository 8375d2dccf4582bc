"""Prices, for every summary and every tariff that can be written."""

from __future__ import annotations

from decimal import Decimal

import msgspec
from billing_cases import energy, summaries, summary, tariffs, unit
from hypothesis import given
from hypothesis import strategies as st

from billing import tariffs as documents
from billing.quotes import expected, if_stopped, next_tokens, tokens_within, worst_case
from billing.rating import Component, green_discount_nano, rate
from billing.tariffs import Tariff
from metering.events import EndedBy, EnergyClass, RequestStatus, RequestSummary

counts = st.integers(0, 300)
# What runs here is quoted, and its joules are never `reported`.
OWN = tuple(kind for kind in EnergyClass if kind is not EnergyClass.REPORTED)


@given(summaries(), tariffs(), st.booleans())
def test_lines_sum_to_the_total_and_no_total_is_negative(
    request: RequestSummary, tariff: Tariff, fee: bool
) -> None:
    charge = rate(request, tariff, review_fee=fee)
    assert charge.lines
    assert charge.total_nano == sum(line.amount_nano for line in charge.lines) >= 0


@given(summaries(), tariffs(), st.booleans())
def test_every_line_is_its_quantity_times_its_price_rounded_once(
    request: RequestSummary, tariff: Tariff, fee: bool
) -> None:
    for line in rate(request, tariff, review_fee=fee).lines:
        exact = line.quantity * line.unit_price * 10**9
        assert abs(exact - line.amount_nano) <= Decimal("0.5")


@given(summaries(), tariffs(), st.booleans())
def test_rating_the_stored_summary_under_the_stored_tariff_gives_the_same_lines(
    request: RequestSummary, tariff: Tariff, fee: bool
) -> None:
    stored = msgspec.json.decode(msgspec.json.encode(request), type=RequestSummary)
    republished = documents.parse(documents.canonical(tariff))
    assert rate(stored, republished, review_fee=fee) == rate(request, tariff, review_fee=fee)


@given(st.data(), tariffs(), counts, counts, st.booleans(), st.booleans())
def test_the_worst_case_bounds_the_charge_of_any_request_with_these_tokens(
    data: st.DataObject, tariff: Tariff, inputs: int, outputs: int, opted_in: bool, fee: bool
) -> None:
    used = data.draw(st.integers(0, outputs))
    request = data.draw(summaries(input_tokens=inputs, output_tokens=used, kinds=OWN))
    charge = rate(request, tariff, review_fee=fee and opted_in)
    assert charge.total_nano <= worst_case(tariff, inputs, outputs, review=opted_in)


@given(
    summaries(kinds=OWN),
    tariffs(),
    st.booleans(),
    st.sampled_from(EndedBy),
    st.sampled_from([EnergyClass.MEASURED, EnergyClass.ESTIMATED]),
    st.integers(0, 10**10),
)
def test_a_hold_for_stopping_here_covers_every_way_to_stop_here(
    request: RequestSummary,
    tariff: Tariff,
    fee: bool,
    ended_by: EndedBy,
    kind: EnergyClass,
    late_uj: int,
) -> None:
    # Energy settles after its tokens were committed: none of it may be known yet.
    early = msgspec.structs.replace(request, energy=energy(kind, 0))
    needed = if_stopped(tariff, early, review=fee)
    late = energy(kind, late_uj)
    for status in RequestStatus:
        ended = msgspec.structs.replace(request, status=status, ended_by=ended_by, energy=late)
        assert rate(ended, tariff, review_fee=fee).total_nano <= needed
    assert needed <= worst_case(tariff, request.input_tokens, request.output_tokens, review=fee)


@given(st.data(), summaries(kinds=OWN), tariffs(), st.integers(0, 64), st.booleans())
def test_the_next_tokens_bound_the_charge_after_any_of_them(
    data: st.DataObject, request: RequestSummary, tariff: Tariff, ahead: int, fee: bool
) -> None:
    bound = next_tokens(tariff, request, ahead, review=fee)
    more = data.draw(st.integers(0, ahead))
    continued = data.draw(
        summaries(input_tokens=request.input_tokens, output_tokens=more, kinds=OWN)
    )
    # Units that are complete and not the last stay as they are; all other text may change.
    kept = tuple(each for each in request.units[:-1] if each.state == "complete")
    freed = request.output_tokens - sum(each.tokens for each in kept)
    later = summary(
        *kept,
        *continued.units,
        unit(freed, data.draw(st.sampled_from(["complete", "fragment"]))),
        unattached_tokens=continued.unattached_tokens,
        input_tokens=request.input_tokens,
        ended_by=continued.ended_by,
        energy=continued.energy,
        verified_blocks=min(
            request.verified_blocks + continued.verified_blocks, request.output_tokens + more
        ),
        information_ubits=continued.information_ubits,
    )
    assert if_stopped(tariff, later, review=fee) <= bound
    assert rate(later, tariff, review_fee=fee).total_nano <= bound


@given(summaries(), tariffs(), st.integers(-1, 64), st.integers(0, 64), st.booleans())
def test_an_amount_is_sure_for_exactly_the_next_tokens_that_it_bounds(
    request: RequestSummary, tariff: Tariff, sure: int, most: int, fee: bool
) -> None:
    nano = next_tokens(tariff, request, 0, review=fee) - 1
    if sure >= 0:
        nano = next_tokens(tariff, request, sure, review=fee)
    found = tokens_within(tariff, request, nano, most, review=fee)
    assert min(sure, most) <= found <= most
    assert found < 0 or next_tokens(tariff, request, found, review=fee) <= nano
    assert found == most or next_tokens(tariff, request, found + 1, review=fee) > nano


@given(summaries(kinds=OWN), tariffs(), counts, counts, st.booleans())
def test_no_price_of_what_others_report_is_in_any_quote_of_ours(
    request: RequestSummary, tariff: Tariff, inputs: int, outputs: int, fee: bool
) -> None:
    if tariff.energy is None:
        return
    joules = msgspec.structs.replace(tariff.energy.per_million, reported=Decimal(10**6))
    dearer, without = (
        msgspec.structs.replace(
            tariff, energy=msgspec.structs.replace(tariff.energy, per_million=prices)
        )
        for prices in (joules, msgspec.structs.replace(joules, reported=None))
    )
    for quote in (worst_case, expected):
        assert quote(dearer, inputs, outputs, review=fee) == quote(
            without, inputs, outputs, review=fee
        )
    assert if_stopped(dearer, request, review=fee) == if_stopped(without, request, review=fee)
    assert next_tokens(dearer, request, 9, review=fee) == next_tokens(
        without, request, 9, review=fee
    )


@given(tariffs(), counts, counts, counts, counts, st.booleans())
def test_more_tokens_never_make_the_worst_case_cheaper(
    tariff: Tariff, inputs: int, outputs: int, more_in: int, more_out: int, review: bool
) -> None:
    fewer = worst_case(tariff, inputs, outputs, review=review)
    assert fewer <= worst_case(tariff, inputs + more_in, outputs + more_out, review=review)


@given(summaries(), tariffs(), st.integers(1, 50), st.integers(0, 10**9), st.integers(0, 10**8))
def test_more_of_anything_never_makes_a_request_cheaper(
    request: RequestSummary, tariff: Tariff, tokens: int, uj: int, ubits: int
) -> None:
    request = msgspec.structs.replace(
        request, status=RequestStatus.COMPLETED, ended_by=EndedBy.TENANT
    )
    more = msgspec.structs.replace(
        request,
        input_tokens=request.input_tokens + tokens,
        output_tokens=request.output_tokens + tokens,
        unattached_tokens=request.unattached_tokens + tokens,
        verified_blocks=request.verified_blocks + tokens,
        information_ubits=(
            None if request.information_ubits is None else request.information_ubits + ubits
        ),
        energy=msgspec.structs.replace(
            request.energy,
            shown_uj=None if request.energy.shown_uj is None else request.energy.shown_uj + uj,
        ),
    )
    before = rate(request, tariff, review_fee=False).total_nano
    assert before <= rate(more, tariff, review_fee=False).total_nano
    assert before <= rate(request, tariff, review_fee=True).total_nano


@given(tariffs(), counts, counts, st.booleans())
def test_what_is_expected_lies_between_nothing_and_the_worst_case(
    tariff: Tariff, inputs: int, outputs: int, review: bool
) -> None:
    guess = expected(tariff, inputs, outputs, review=review)
    assert 0 <= guess <= worst_case(tariff, inputs, outputs, review=review)


@given(summaries(), tariffs())
def test_the_review_fee_stands_outside_the_tariffs_bounds(
    request: RequestSummary, tariff: Tariff
) -> None:
    without = rate(request, tariff, review_fee=False)
    charge = rate(request, tariff, review_fee=True)
    assert charge.total_nano == without.total_nano + charge.of(Component.REVIEW)


@given(summaries(), tariffs(), st.booleans())
def test_green_energy_never_costs_more_and_the_discount_is_what_its_line_lacks(
    request: RequestSummary, tariff: Tariff, fee: bool
) -> None:
    plain, green = (
        rate(msgspec.structs.replace(request, green=each), tariff, review_fee=fee)
        for each in (False, True)
    )
    assert green.total_nano <= plain.total_nano
    chosen = msgspec.structs.replace(request, green=True)
    discount = green_discount_nano(green.lines, chosen, tariff)
    assert (discount or 0) == plain.of(Component.ENERGY) - green.of(Component.ENERGY) >= 0
