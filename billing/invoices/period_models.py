"""From a tariff's period prices and a period's quantities to priced lines. Pure.

Every line is rounded once, half to even, to a nano. Pricing depends on the period's totals only,
so it does not matter in which order, or how late, the usage came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction

from billing.money import EXACT, round_nano
from billing.period_terms import PeriodPrice, Tier
from billing.rating import MILLIONTH, ONE, ZERO, per_unit

HUNDREDTH = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Charged:
    """What the period's requests were charged for one component."""

    quantity: Decimal
    amount_nano: int


@dataclass(frozen=True, slots=True)
class PeriodLine:
    """One priced line; `unit_price` is null where the amount is no plain product."""

    detail: str
    quantity: Decimal
    unit: str
    unit_price: Decimal | None
    amount_nano: int


def price_all(
    prices: Mapping[str, PeriodPrice],
    measured: Mapping[str, Decimal],
    charged: Mapping[str, Charged],
    paid_nano: int,
) -> Iterator[tuple[str, PeriodLine]]:
    """The lines of all entries, by name.

    Allowances together give back no more than requests have paid: what was refunded, or never
    covered, is not given back once more.
    """
    left = max(0, paid_nano)
    for name, terms in sorted(prices.items()):
        for line in price(terms, measured, charged):
            if terms.model == "allowance":
                back = min(-line.amount_nano, left)
                left -= back
                if back:
                    yield name, replace(line, amount_nano=-back)
            else:
                yield name, line


def price(
    terms: PeriodPrice, measured: Mapping[str, Decimal], charged: Mapping[str, Charged]
) -> list[PeriodLine]:
    """The lines of one entry: of what was measured, or of what requests were charged.

    `measured` is by measure, `charged` by component. Lines that come to nothing are left out, as
    long as no bound applies.
    """
    lines = list(_model(terms, measured, charged))
    total = sum(line.amount_nano for line in lines)
    bound = total
    if terms.minimum is not None:
        bound = max(bound, round_nano(terms.minimum))
    if terms.maximum is not None:
        bound = min(bound, round_nano(terms.maximum))
    if bound != total:
        detail = "minimum" if bound > total else "maximum"
        lines.append(_product(detail, ONE, "periods", Decimal(bound - total).scaleb(-9, EXACT)))
    return [line for line in lines if line.amount_nano]


def tier_name(number: int, *, flat: bool = False) -> str:
    """The detail of a tier's line: of its price for each, or of what reaching it costs."""
    return f"tier {number}, flat" if flat else f"tier {number}"


def charged_name(terms: PeriodPrice) -> str:
    """The detail of a percentage's line: what it is a percentage of."""
    return terms.component or "all charges"


def share_of(percent: Decimal) -> Decimal:
    """A percentage as the price of one that was charged."""
    return EXACT.multiply(percent, HUNDREDTH)


def _model(
    terms: PeriodPrice, measured: Mapping[str, Decimal], charged: Mapping[str, Charged]
) -> Iterator[PeriodLine]:
    if terms.model == "flat":
        yield _product("flat", ONE, "periods", _given(terms.amount))
    elif terms.model == "percentage":
        yield _percentage(terms, charged)
    elif terms.model == "allowance":
        yield _allowance(terms, charged)
    else:
        assert terms.measure is not None
        quantity = measured[terms.measure]
        if terms.model == "package":
            yield _packages(terms, quantity)
        else:
            tiers = terms.tiers or ()
            parts = _graduated if terms.model == "graduated" else _volume
            yield from parts(tiers, quantity, terms.measure)


def _graduated(tiers: tuple[Tier, ...], quantity: Decimal, unit: str) -> Iterator[PeriodLine]:
    """Each tier's price for what falls into it: ...](  tier  ](...  both bounds as written."""
    below = ZERO
    for number, tier in enumerate(tiers, 1):
        if quantity <= below and number > 1:
            return
        within = quantity if tier.up_to is None else min(quantity, tier.up_to)
        yield from _tier(tier, number, within - below, unit)
        below = within if tier.up_to is None else tier.up_to


def _volume(tiers: tuple[Tier, ...], quantity: Decimal, unit: str) -> Iterator[PeriodLine]:
    """The whole quantity at the price of the tier that it reaches."""
    for number, tier in enumerate(tiers, 1):
        if tier.up_to is None or quantity <= tier.up_to:
            yield from _tier(tier, number, quantity, unit)
            return


def _tier(tier: Tier, number: int, quantity: Decimal, unit: str) -> Iterator[PeriodLine]:
    yield _product(tier_name(number), quantity, unit, per_unit(tier.per_million))
    if quantity:
        yield _product(tier_name(number, flat=True), ONE, "periods", tier.flat)


def _packages(terms: PeriodPrice, quantity: Decimal) -> PeriodLine:
    size = _given(terms.size)
    beyond = max(ZERO, quantity - (terms.free or ZERO))
    count = -(-Fraction(beyond) // Fraction(size))
    return _product("packages", Decimal(count), "packages", _given(terms.amount))


def _percentage(terms: PeriodPrice, charged: Mapping[str, Charged]) -> PeriodLine:
    chosen = charged.values() if terms.component is None else [_charged(terms.component, charged)]
    base = Decimal(sum(each.amount_nano for each in chosen)).scaleb(-9, EXACT)
    return _product(charged_name(terms), base, "charged", share_of(_given(terms.percent)))


def _allowance(terms: PeriodPrice, charged: Mapping[str, Charged]) -> PeriodLine:
    """Give back what the free part of a component's quantity cost, at its average price."""
    assert terms.component is not None
    used = _charged(terms.component, charged)
    free = min(used.quantity, _given(terms.free))
    back = round(used.amount_nano * Fraction(free) / Fraction(used.quantity)) if free else 0
    return PeriodLine(f"allowance of {terms.component}", free, terms.component, None, -back)


def _charged(component: str, charged: Mapping[str, Charged]) -> Charged:
    return charged.get(component, Charged(ZERO, 0))


def _given(value: Decimal | None) -> Decimal:
    assert value is not None  # a tariff without it is not valid
    return value


def _product(detail: str, quantity: Decimal, unit: str, unit_price: Decimal) -> PeriodLine:
    amount = round_nano(EXACT.multiply(quantity, unit_price))
    return PeriodLine(detail, quantity, unit, unit_price, amount)


def from_millionths(count: int) -> Decimal:
    """A quantity that was added up in millionths of its unit."""
    return EXACT.multiply(Decimal(count), MILLIONTH)
