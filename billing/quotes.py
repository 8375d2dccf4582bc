"""What a request may cost before it has run, and while it runs. Pure.

`worst_case`, `if_stopped`, `next_tokens` and `tokens_within` bound `rating.rate` from above,
whatever units, tiers, joules, bits and blocks come out: holds rest on that. Only what runs here is
quoted, so none counts the price of joules that another engine reports. `expected` is a guess, and
says from what.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, Decimal
from functools import lru_cache

import msgspec

from billing.errors import CostCeilingTooLow
from billing.money import EXACT, NANO_MAX, round_nano
from billing.rating import PRICE_GROUPS, bounded, output_price, per_unit, rate
from billing.tariffs import Energy, Output, Tariff
from billing.typical import OWN_CLASSES, USUAL, OwnClass, Typical
from metering.events import (
    ConfidenceTier,
    EndedBy,
    EnergyClass,
    EnergySummary,
    RequestStatus,
    RequestSummary,
    UnitState,
)


def worst_case(tariff: Tariff, input_tokens: int, output_tokens: int, *, review: bool) -> int:
    """The most, in nano, that a request with up to so many output tokens can cost."""
    return _bound(tariff, input_tokens, {}, output_tokens, output_tokens, review=review)


def check_ceiling(
    tariff: Tariff, ceiling_nano: int, input_tokens: int, output_tokens: int, *, review: bool
) -> None:
    """Raise CostCeilingTooLow where not even the input and one token are sure to cost no more."""
    most = worst_case(tariff, input_tokens, min(1, output_tokens), review=review)
    if ceiling_nano < most:
        raise CostCeilingTooLow(most, ceiling_nano, tariff.currency)


def if_stopped(tariff: Tariff, summary: RequestSummary, *, review: bool) -> int:
    """The most, in nano, that the request can cost should it end with exactly this output.

    As `rate`, but with energy at its cap, because joules settle after the tokens do, and with
    open text at the dearer of the two ways to end it: the tenant's decision, or ours.
    """
    fragment_is_cheaper = tariff.output is not None and tariff.output.units.fragment < 1
    ours = fragment_is_cheaper and summary.output_tokens > 0
    stopped = msgspec.structs.replace(
        summary,
        status=RequestStatus.COMPLETED,
        ended_by=EndedBy.OPERATOR if ours else EndedBy.TENANT,
        energy=_most_energy(tariff.energy) if tariff.energy else summary.energy,
    )
    return rate(stopped, tariff, review_fee=review).total_nano


def next_tokens(tariff: Tariff, summary: RequestSummary, tokens: int, *, review: bool) -> int:
    """The most, in nano, that the request can cost if it ends after up to `tokens` more.

    Complete units keep their price, because they never reopen; all other text may still change
    state and tier. So may the last unit, which only the end of the text may have closed.
    """
    return _ahead(tariff, summary, review=review)(tokens)


def tokens_within(
    tariff: Tariff, summary: RequestSummary, nano: int, tokens_max: int, *, review: bool
) -> int:
    """How many tokens more, up to `tokens_max`, cost at most `nano` in all whatever they are.

    -1 where not even the text so far is sure to, were it to go on.
    """
    costs = _ahead(tariff, summary, review=review)
    return bisect_right(range(tokens_max + 1), nano, key=costs) - 1


def _ahead(tariff: Tariff, summary: RequestSummary, *, review: bool) -> Callable[[int], int]:
    """`next_tokens` as a function of the tokens alone, which never falls."""
    closed: Counter[ConfidenceTier | None] = Counter()
    for unit in summary.units[:-1]:
        if unit.state is UnitState.COMPLETE:
            closed[unit.tier] += unit.tokens
    still_open = summary.output_tokens - closed.total()

    def costs(tokens: int) -> int:
        return _bound(
            tariff,
            summary.input_tokens,
            closed,
            still_open + tokens,
            summary.verified_blocks + tokens,
            review=review,
        )

    return costs


def expected(
    tariff: Tariff,
    input_tokens: int,
    output_tokens: int,
    *,
    review: bool,
    typical: Typical = USUAL,
    green: bool = False,
) -> int:
    """What such a request usually costs, in nano; never more than `worst_case`.

    `green`: energy decides where it runs, so that the tariff's green price is due.
    """
    total = Decimal(0)
    if tariff.input is not None:
        total += per_unit(tariff.input.per_million) * input_tokens
    if tariff.output is not None:
        complete = typical.complete_share
        shares = ((UnitState.COMPLETE, complete), (UnitState.FRAGMENT, 1 - complete))
        for state, share in shares:
            for tier, tier_share in zip(ConfidenceTier, typical.tier_shares, strict=True):
                price = output_price(tariff.output, state, tier)
                total += price * share * tier_share * output_tokens
    total += _expected_measures(tariff, input_tokens, output_tokens, typical, green=green)
    if tariff.request is not None:
        total += tariff.request.fee
    nano = round_nano(total)
    if tariff.request is not None:
        nano = bounded(tariff.request, nano)
    if review and tariff.review is not None:
        nano += round_nano(tariff.review.fee * typical.review_share)
    return min(nano, worst_case(tariff, input_tokens, output_tokens, review=review))


def _bound(
    tariff: Tariff,
    input_tokens: int,
    closed: Mapping[ConfidenceTier | None, int],
    open_tokens: int,
    verified_blocks: int,
    *,
    review: bool,
) -> int:
    output_tokens = sum(closed.values()) + open_tokens
    nano = 0
    if tariff.input is not None:
        nano += round_nano(EXACT.multiply(per_unit(tariff.input.per_million), input_tokens))
    if tariff.output is not None:
        dearest, roundings = _dearest(tariff.output)
        exact = EXACT.multiply(dearest, open_tokens)
        for tier, tokens in closed.items():
            price = output_price(tariff.output, UnitState.COMPLETE, tier)
            exact = EXACT.add(exact, EXACT.multiply(price, tokens))
        nano += int(exact.scaleb(9, EXACT).to_integral_value(ROUND_CEILING))
        # Each output line is rounded by itself, and gains half a nano at most.
        nano += (min(roundings, output_tokens) + 1) // 2
    if tariff.energy is not None:
        most = EXACT.multiply(tariff.energy.cap_joules_per_token, input_tokens + output_tokens)
        nano += round_nano(EXACT.multiply(most, per_unit(_joule_price(tariff.energy, None))))
    if tariff.information is not None:
        most = EXACT.multiply(tariff.information.cap_bits_per_token, output_tokens)
        nano += round_nano(EXACT.multiply(most, per_unit(tariff.information.per_million)))
    if tariff.blocks is not None:
        blocks = min(verified_blocks, output_tokens)
        nano += round_nano(EXACT.multiply(per_unit(tariff.blocks.per_million), blocks))
    if tariff.request is not None:
        nano = bounded(tariff.request, nano + round_nano(tariff.request.fee))
    if review and tariff.review is not None:
        nano += round_nano(tariff.review.fee)
    return nano


@lru_cache(maxsize=256)
def _dearest(output: Output) -> tuple[Decimal, int]:
    """The highest price of one token, and how many groups of tokens need rounding."""
    prices = [output_price(output, state, tier) for state, tier in PRICE_GROUPS]
    prices.append(per_unit(output.per_million))
    return max(prices), sum(price.scaleb(9, EXACT) % 1 != 0 for price in prices)


def _most_energy(energy: Energy) -> EnergySummary:
    dearest = max(OWN_CLASSES, key=lambda kind: _joule_price(energy, kind))
    return EnergySummary(EnergyClass(dearest), NANO_MAX, NANO_MAX, "none", "none", "none", None)


def _joule_price(energy: Energy, kind: OwnClass | None) -> Decimal:
    if kind is not None:
        return getattr(energy.per_million, kind) or Decimal(0)
    return max(_joule_price(energy, each) for each in OWN_CLASSES)


def _expected_measures(
    tariff: Tariff, input_tokens: int, output_tokens: int, typical: Typical, *, green: bool
) -> Decimal:
    total = Decimal(0)
    if tariff.energy is not None:
        cap = tariff.energy.cap_joules_per_token
        joules = cap if typical.joules_per_token is None else min(cap, typical.joules_per_token)
        price = per_unit(_joule_price(tariff.energy, typical.energy_class))
        if green and tariff.energy.green is not None:
            price *= tariff.energy.green
        total += price * joules * (input_tokens + output_tokens)
    if tariff.information is not None:
        cap = tariff.information.cap_bits_per_token
        bits = cap if typical.bits_per_token is None else min(cap, typical.bits_per_token)
        total += per_unit(tariff.information.per_million) * bits * output_tokens
    if tariff.blocks is not None:
        blocks = min(Decimal(1), typical.verified_blocks_per_token) * output_tokens
        total += per_unit(tariff.blocks.per_million) * blocks
    return total
