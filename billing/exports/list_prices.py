"""What one unit of a line costs by a tariff: list prices beside a customer's own. Pure."""

from __future__ import annotations

from decimal import Decimal

from billing.invoices.period_models import charged_name, share_of, tier_name
from billing.money import EXACT
from billing.period_terms import PeriodPrice
from billing.rating import Component, output_price, per_unit
from billing.tariffs import Energy, Tariff
from metering.events import ConfidenceTier, UnitState


def unit_price(tariff: Tariff, component: str, detail: str) -> Decimal | None:
    """The price of one, in currency units; null where the tariff prices nothing of the kind."""
    if component == Component.OUTPUT:
        return _output(tariff, detail)
    if component == Component.ENERGY:
        return _energy(tariff.energy, detail.split(", "))
    by_million = {
        Component.INPUT: tariff.input,
        Component.INFORMATION: tariff.information,
        Component.BLOCKS: tariff.blocks,
    }
    by_one = {Component.REQUEST: tariff.request, Component.REVIEW: tariff.review}
    for part, terms in by_million.items():
        if part == component and terms is not None:
            return per_unit(terms.per_million)
    for part, fees in by_one.items():
        if part == component and fees is not None:
            return fees.fee
    return None


def period_price(tariff: Tariff, own: Tariff, name: str, detail: str) -> Decimal | None:
    """The tariff's price of one of what a customer's `own` charges for the month in this line.

    Null where the tariff has no such entry, or one that measures or cuts something else; and for a
    bound, which is no price.
    """
    listed, paid = (each.period.get(name) if each.period else None for each in (tariff, own))
    if listed is None or paid is None or _of_what(listed) != _of_what(paid):
        return None
    prices: dict[str, Decimal | None] = {"flat": listed.amount, "packages": listed.amount}
    if listed.percent is not None:
        prices[charged_name(listed)] = share_of(listed.percent)
    for number, tier in enumerate(listed.tiers or (), 1):
        prices[tier_name(number)] = per_unit(tier.per_million)
        prices[tier_name(number, flat=True)] = tier.flat
    return prices.get(detail)


def _of_what(terms: PeriodPrice) -> tuple[object, ...]:
    """What an entry's unit prices are of, whatever they are."""
    bounds = tuple(tier.up_to for tier in terms.tiers or ())
    return (terms.model, terms.measure, terms.component, terms.size, bounds)


def _energy(terms: Energy | None, details: list[str]) -> Decimal | None:
    per_million = None if terms is None else getattr(terms.per_million, details[0], None)
    if terms is None or per_million is None:
        return None
    price = per_unit(per_million)
    if "green" in details and terms.green is not None:
        return EXACT.multiply(price, terms.green)
    return price


def _output(tariff: Tariff, detail: str) -> Decimal | None:
    if tariff.output is None:
        return None
    state, _, tier = detail.partition("/")
    if state == "unattached":
        return per_unit(tariff.output.per_million)
    return output_price(
        tariff.output,
        None if state == "base" else UnitState(state),
        None if tier == "unscored" else ConfidenceTier(tier),
    )
