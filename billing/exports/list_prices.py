"""What one unit of a line costs by a tariff: list prices beside a customer's own. Pure."""

from __future__ import annotations

from decimal import Decimal

from billing.rating import Component, output_price, per_unit
from billing.tariffs import Tariff
from metering.events import ConfidenceTier, UnitState


def unit_price(tariff: Tariff, component: str, detail: str) -> Decimal | None:
    """The price of one, in currency units; null where the tariff prices nothing of the kind."""
    if component == Component.OUTPUT:
        return _output(tariff, detail)
    if component == Component.ENERGY:
        joules = None if tariff.energy is None else tariff.energy.per_million
        price = getattr(joules, detail.partition(",")[0], None)
        return None if price is None else per_unit(price)
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
