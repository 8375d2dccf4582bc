"""What a tariff asks for a whole period, as its document says it: read here, priced on invoices.

Each entry of `period` has a name and one of the models below. Which fields a model takes is in
`FIELDS`; what they mean is in `docs/tariffs.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Annotated

import msgspec

from billing.tariff_documents import Limits, Text

MEASURES = (
    "requests",
    "input_tokens",
    "output_tokens",
    "complete_units",
    "fragment_units",
    "all_blocks",
    "bits",
    "joules_measured",
    "joules_estimated",
    "joules_reported",
)
# What a measure was called when it was published: there, and nowhere else, it is still read so.
RETIRED = {"blocks": "all_blocks"}
COMPONENTS = ("input", "output", "review", "energy", "information", "blocks", "request")
# By model: the fields it needs, and those it may have.
FIELDS: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "flat": (frozenset({"amount"}), frozenset()),
    "graduated": (frozenset({"measure", "tiers"}), frozenset({"minimum", "maximum"})),
    "volume": (frozenset({"measure", "tiers"}), frozenset({"minimum", "maximum"})),
    "package": (
        frozenset({"measure", "size", "amount"}),
        frozenset({"free", "minimum", "maximum"}),
    ),
    "percentage": (frozenset({"percent"}), frozenset({"component", "minimum", "maximum"})),
    "allowance": (frozenset({"component", "free"}), frozenset()),
}

UnitPrice = Annotated[Decimal, Limits(places=12, high=10**6)]
Amount = Annotated[Decimal, Limits(places=9, high=10**6)]
Percent = Annotated[Decimal, Limits(places=6, high=1000)]
Quantity = Annotated[Decimal, Limits(places=6, high=10**12, above_zero=True)]


class Tier(msgspec.Struct, frozen=True):
    """One step of a price: up to and including so many units, or, in the last one, all others."""

    up_to: Quantity | None = None
    per_million: UnitPrice = Decimal(0)
    flat: Amount = Decimal(0)  # once, where the tier is reached


class PeriodPrice(msgspec.Struct, frozen=True):
    """One entry of a tariff's `period`."""

    model: Annotated[str, Text("|".join(FIELDS), f"one of {', '.join(FIELDS)}")]
    measure: (
        Annotated[str, Text("|".join((*MEASURES, *RETIRED)), f"one of {', '.join(MEASURES)}")]
        | None
    ) = None
    component: (
        Annotated[str, Text("|".join(COMPONENTS), f"one of {', '.join(COMPONENTS)}")] | None
    ) = None
    amount: Amount | None = None
    tiers: tuple[Tier, ...] | None = None
    size: Quantity | None = None
    free: Quantity | None = None
    percent: Percent | None = None
    minimum: Amount | None = None
    maximum: Amount | None = None


def retired(name: str, price: PeriodPrice) -> Iterator[str]:
    """What an entry may say only where it was published before."""
    if price.measure in RETIRED:
        yield (
            f"period.{name}.measure: {price.measure} are those in which drafted tokens were"
            f" accepted, and a month has no such measure; {RETIRED[price.measure]} are all of them"
        )


def contradictions(name: str, price: PeriodPrice) -> Iterator[str]:
    """What is wrong with an entry beyond the form of its fields."""
    needed, allowed = FIELDS[price.model]
    given = {
        field
        for field in price.__struct_fields__
        if field != "model" and getattr(price, field) is not None
    }
    for field in sorted(needed - given):
        yield f"period.{name}.{field}: missing, and the model {price.model} needs it"
    for field in sorted(given - needed - allowed):
        yield f"period.{name}.{field}: the model {price.model} has no such field"
    if price.tiers is not None:
        yield from _tiers(name, price.tiers)
    if None not in (price.minimum, price.maximum) and (price.minimum or 0) > (price.maximum or 0):
        yield f"period.{name}.minimum: above the maximum"


def _tiers(name: str, tiers: tuple[Tier, ...]) -> Iterator[str]:
    bounds = [tier.up_to for tier in tiers]
    if not bounds or bounds[-1] is not None:
        yield f"period.{name}.tiers: the last tier takes all that is left, so it has no up_to"
    limits = [bound for bound in bounds[:-1] if bound is not None]
    if len(limits) != len(bounds[:-1]) or limits != sorted(set(limits)):
        yield f"period.{name}.tiers: up_to has to grow from tier to tier"
