"""Single FOCUS rows: how a charge is named, priced and costed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any

from billing.exports.columns import PLACES, Row
from billing.invoices.wording import COMPONENTS
from billing.money import EXACT

STEP = Decimal(1).scaleb(-PLACES)
ROUNDING = Context(prec=120)
PER_MILLION = frozenset({"input", "output", "energy", "information", "blocks"})

Key = tuple[str | None, ...]


@dataclass(slots=True)
class Owed:
    """What is left of an invoice line once the rows of its parts are out."""

    quantity: Decimal
    amount_nano: int


def residual(key: Key, rest: Owed) -> Row:
    """The difference between an invoice line and the rows of its parts."""
    _, component, detail, _, version = key
    name = f"{name_of(str(component), str(detail))}, booked while invoices were drawn up"
    row = plain("Adjustment", name, rest.amount_nano)
    return row | {"x_Component": component, "x_TariffVersion": version}


def periodic(line: Mapping[Any, Any], *, listed: Decimal | None, corrects: bool) -> Row:
    """A price of the month, beside its list price if that is another one.

    Without a plain, positive unit price it is an adjustment.
    """
    name = f"{line['component']}: {line['detail']}"
    more = {"x_Component": line["component"], "x_TariffVersion": line["tariff_version_id"]}
    price = None if line["unit_price"] is None else Decimal(line["unit_price"])
    if price is None or price < 0 or corrects:
        return plain("Adjustment", name, line["amount_nano"]) | more
    row = plain("Usage", name, line["amount_nano"])
    row |= priced(
        f"month/{line['component']}",
        line["unit"],
        Decimal(line["quantity"]),
        listed=price if listed is None else listed,
        contracted=price,
    )
    if line["detail"] == "flat":
        row["ChargeFrequency"] = "Recurring"
    sku = (line["tariff_version_id"], "period", line["component"], line["detail"])
    return row | more | {"SkuPriceId": "/".join(sku)}


def plain(category: str, description: str, nano: int) -> Row:
    """A charge without a price: all four costs are what it is billed at."""
    cost = Decimal(nano).scaleb(-9)
    return {
        "ChargeCategory": category,
        "ChargeDescription": description,
        "ChargeFrequency": "Usage-Based" if category != "Purchase" else "One-Time",
        "ListCost": cost,
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "BilledCost": cost,
    }


def priced(
    component: str, unit: str, quantity: Decimal, *, listed: Decimal, contracted: Decimal
) -> Row:
    """Quantity and prices, a million units at a time where so priced, and their products."""
    by_million = component in PER_MILLION
    pricing = quantity.scaleb(-6, EXACT) if by_million else quantity
    name = unit.replace("_", " ").capitalize()
    row: Row = {
        "SkuId": component,
        "SkuMeter": name,
        "PricingCategory": "Standard",
        "PricingQuantity": pricing,
        "PricingUnit": f"1000000 {name}" if by_million else name,
        "ConsumedQuantity": quantity,
        "ConsumedUnit": name,
    }
    for kind, each in (("List", listed), ("Contracted", contracted)):
        price = rounded(each.scaleb(6, EXACT) if by_million else each)
        row[f"{kind}UnitPrice"] = price
        row[f"{kind}Cost"] = rounded(EXACT.multiply(pricing, price))
    return row


def rounded(value: Decimal) -> Decimal:
    """To the decimal places of a file: only a price of many fine multipliers has more."""
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    return value.quantize(STEP, ROUND_HALF_EVEN, ROUNDING) if exponent < -PLACES else value


def name_of(component: str, detail: str) -> str:
    """A component in words."""
    name = COMPONENTS.get(component, component.replace("_", " "))
    return f"{name} ({detail})" if detail else name


def millionths(value: int | None) -> Decimal | None:
    """A count of millionths as a whole number of units; null stays null."""
    return None if value is None else Decimal(value).scaleb(-6)
