"""From a request summary and a tariff to rated lines. Pure: the same input, the same nanos.

Each line is one product of decimals, rounded once, half to even; the total is the sum of the
lines. A bound (minimum, maximum) is a line of its own, and so is the reason for charging nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

import msgspec

from billing.errors import UnratableSummary
from billing.money import EXACT, round_nano
from billing.tariffs import Energy, Output, Request, Tariff
from metering.events import (
    ConfidenceTier,
    EndedBy,
    EnergyClass,
    RequestStatus,
    RequestSummary,
    UnitState,
)

ONE = Decimal(1)
ZERO = Decimal(0)
MILLIONTH = Decimal("0.000001")
OURS = "ended by the operator without output"  # the detail of such a waiver

# How output tokens group into lines, in the order of the lines.
PRICE_GROUPS: tuple[tuple[UnitState | None, ConfidenceTier | None], ...] = tuple(
    (state, tier)
    for state in (UnitState.COMPLETE, UnitState.FRAGMENT, None)
    for tier in (*ConfidenceTier, None)
)


class Component(StrEnum):
    """What a line charges for."""

    INPUT = "input"
    OUTPUT = "output"
    REVIEW = "review"
    ENERGY = "energy"
    INFORMATION = "information"
    BLOCKS = "blocks"
    REQUEST = "request"
    MINIMUM = "minimum"  # tops the price up
    MAXIMUM = "maximum"  # negative: takes what is above it off
    WRITE_OFF = "write_off"  # negative: what neither hold nor credit covered
    WAIVED = "waived"  # nothing is charged, and `detail` says why


@dataclass(frozen=True, slots=True)
class Line:
    """One rated line: `amount_nano` is `quantity * unit_price`, rounded once."""

    component: Component
    detail: str
    quantity: Decimal  # what is charged for, caps applied
    unit: str
    unit_price: Decimal  # currency units, multipliers applied
    amount_nano: int


@dataclass(frozen=True, slots=True)
class Charge:
    """The rated lines of a request; the total is their sum and never negative."""

    lines: tuple[Line, ...]

    @property
    def total_nano(self) -> int:
        """The whole price, review fee included."""
        return sum(line.amount_nano for line in self.lines)

    def of(self, *components: Component) -> int:
        """What these components come to, in nano."""
        return sum(line.amount_nano for line in self.lines if line.component in components)


def rate(summary: RequestSummary, tariff: Tariff, *, review_fee: bool) -> Charge:
    """Price a request, or what it would cost if it stopped as summarised.

    Raises UnratableSummary when the output's tokens and those of its units disagree.
    """
    if waived := _waiver(summary):
        return waive(waived)
    lines = [*_tokens(summary, tariff), *_measures(summary, tariff)]
    if tariff.request is not None:
        lines += _request(tariff.request, sum(line.amount_nano for line in lines))
    if review_fee and tariff.review is not None:
        lines.append(priced(Component.REVIEW, "", ONE, "reviews", tariff.review.fee))
    return Charge(tuple(lines)) if lines else waive("nothing in it is priced by this tariff")


def green_discount_nano(
    lines: Sequence[Line], summary: RequestSummary, tariff: Tariff
) -> int | None:
    """What the green price took off the energy among these lines; null where it took part in none.

    Not so where the whole request was waived.
    """
    if tariff.energy is None or tariff.energy.green is None or not summary.green:
        return None
    paid = [line.amount_nano for line in lines if line.component is Component.ENERGY]
    dearer = _measures(msgspec.structs.replace(summary, green=False), tariff)
    listed = [line.amount_nano for line in dearer if line.component is Component.ENERGY]
    return sum(listed) - sum(paid) if paid else None


def waive(reason: str) -> Charge:
    """A charge of nothing, with the reason as its only line."""
    return Charge((priced(Component.WAIVED, reason, ONE, "requests", ZERO),))


def priced(
    component: Component, detail: str, quantity: Decimal, unit: str, unit_price: Decimal
) -> Line:
    """A line whose amount is its quantity times its price."""
    amount = round_nano(EXACT.multiply(quantity, unit_price))
    return Line(component, detail, quantity, unit, unit_price, amount)


def output_price(output: Output, state: UnitState | None, tier: ConfidenceTier | None) -> Decimal:
    """Price of one token in a unit of this state and tier.

    Without a state it is the base price. Without a tier, because the score is missing, it is the
    cheapest tier's: what we failed to score is not sold as sure.
    """
    tiers = output.tiers
    unit = ONE if state is None else getattr(output.units, state)
    sure = (
        min(tiers.standard, tiers.reduced, tiers.review) if tier is None else getattr(tiers, tier)
    )
    return EXACT.multiply(per_unit(output.per_million), EXACT.multiply(unit, sure))


def per_unit(per_million: Decimal) -> Decimal:
    """The price of one from the price of a million, exactly."""
    return EXACT.multiply(per_million, MILLIONTH)


def bounded(request: Request, amount_nano: int) -> int:
    """An amount within the tariff's minimum and maximum."""
    if request.minimum is not None:
        amount_nano = max(amount_nano, round_nano(request.minimum))
    if request.maximum is not None:
        amount_nano = min(amount_nano, round_nano(request.maximum))
    return amount_nano


def _waiver(summary: RequestSummary) -> str | None:
    if summary.output_tokens:
        return None
    if summary.status is RequestStatus.REFUSED:
        return "refused before it ran"
    return OURS if _ours(summary) else None


def _ours(summary: RequestSummary) -> bool:
    return summary.ended_by is EndedBy.OPERATOR


def _tokens(summary: RequestSummary, tariff: Tariff) -> Iterator[Line]:
    if tariff.input is not None:
        price = per_unit(tariff.input.per_million)
        yield priced(Component.INPUT, "", Decimal(summary.input_tokens), "tokens", price)
    in_units = sum(unit.tokens for unit in summary.units)
    if in_units + summary.unattached_tokens != summary.output_tokens:
        raise UnratableSummary(
            f"{summary.request_id}: {summary.output_tokens} output tokens, but {in_units} in units "
            f"and {summary.unattached_tokens} in none"
        )
    if tariff.output is None:
        return
    # A unit that our own decision left open is no fault of the tenant's: no premium.
    groups: Counter[tuple[UnitState | None, ConfidenceTier | None]] = Counter()
    for unit in summary.units:
        cut_by_us = unit.state is UnitState.FRAGMENT and _ours(summary)
        groups[None if cut_by_us else unit.state, unit.tier] += unit.tokens
    for state, tier in PRICE_GROUPS:
        if tokens := groups[state, tier]:
            detail = f"{state or 'base'}/{tier or 'unscored'}"
            price = output_price(tariff.output, state, tier)
            yield priced(Component.OUTPUT, detail, Decimal(tokens), "tokens", price)
    if summary.unattached_tokens:
        quantity, price = Decimal(summary.unattached_tokens), per_unit(tariff.output.per_million)
        yield priced(Component.OUTPUT, "unattached", quantity, "tokens", price)


def _measures(summary: RequestSummary, tariff: Tariff) -> Iterator[Line]:
    if tariff.energy is not None:
        tokens = summary.input_tokens + summary.output_tokens
        cap = EXACT.multiply(tariff.energy.cap_joules_per_token, Decimal(tokens))
        yield _energy(summary, tariff.energy, cap)
    if tariff.information is not None:
        price = per_unit(tariff.information.per_million)
        cap = EXACT.multiply(tariff.information.cap_bits_per_token, Decimal(summary.output_tokens))
        if summary.information_ubits is None:
            yield priced(Component.INFORMATION, "unavailable", ZERO, "bits", price)
        else:
            bits, capped = _capped(summary.information_ubits, cap)
            yield priced(Component.INFORMATION, capped, bits, "bits", price)
    if tariff.blocks is not None:
        # A block emits at least one token; what a meter counts beyond that is not charged.
        blocks = Decimal(min(summary.verified_blocks, summary.output_tokens))
        price = per_unit(tariff.blocks.per_million)
        yield priced(Component.BLOCKS, "", blocks, "blocks", price)


def _energy(summary: RequestSummary, terms: Energy, cap: Decimal) -> Line:
    energy = summary.energy
    kind = energy.energy_class
    if kind is EnergyClass.UNAVAILABLE or energy.shown_uj is None:
        return priced(Component.ENERGY, "unavailable", ZERO, "joules", ZERO)
    per_million = getattr(terms.per_million, kind)
    if per_million is None:
        return priced(Component.ENERGY, f"{kind}, not charged by this tariff", ZERO, "joules", ZERO)
    joules, capped = _capped(energy.shown_uj, cap)
    price = per_unit(per_million)
    details = [str(kind), capped]
    if summary.green and terms.green is not None:
        price = EXACT.multiply(price, terms.green)
        details.append("green")
    return priced(Component.ENERGY, ", ".join(filter(None, details)), joules, "joules", price)


def _capped(millionths: int, cap: Decimal) -> tuple[Decimal, str]:
    measured = EXACT.multiply(Decimal(millionths), MILLIONTH)
    return (cap, "capped") if measured > cap else (measured, "")


def _request(request: Request, so_far_nano: int) -> Iterator[Line]:
    if request.fee:
        fee = priced(Component.REQUEST, "", ONE, "requests", request.fee)
        so_far_nano += fee.amount_nano
        yield fee
    difference = bounded(request, so_far_nano) - so_far_nano
    if difference:
        component = Component.MINIMUM if difference > 0 else Component.MAXIMUM
        amount = Decimal(difference).scaleb(-9, EXACT)
        yield priced(component, "", ONE, "requests", amount)
