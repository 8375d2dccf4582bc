"""The columns of a FOCUS 1.2 data set as this gateway fills them, its own `x_` columns last.

The specification's columns that speak of regions, resources, commitments and reservations are
absent, as it asks of a provider that has none of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

PLACES = 18  # of every decimal: Parquet's widest that other readers take, and finer than a nano


class Kind(StrEnum):
    """What a column holds. Every kind may be null."""

    TEXT = "text"
    DECIMAL = "decimal"  # with a point in every text, so that readers who guess types guess it
    NUMBER = "number"  # a whole number, or a decimal as text
    INSTANT = "instant"  # epoch microseconds here; whole seconds in UTC in a file
    PAIRS = "pairs"  # a JSON object


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its name in the file, and what it holds."""

    name: str
    kind: Kind = Kind.TEXT


def _decimals(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, Kind.DECIMAL) for name in names)


def _texts(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name) for name in names)


def _instants(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, Kind.INSTANT) for name in names)


STANDARD: tuple[Column, ...] = (
    *_texts("BillingAccountId", "BillingAccountName", "SubAccountId", "SubAccountName"),
    *_texts("InvoiceId", "InvoiceIssuerName", "ProviderName", "PublisherName"),
    *_instants("BillingPeriodStart", "BillingPeriodEnd"),
    *_instants("ChargePeriodStart", "ChargePeriodEnd"),
    *_texts("ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency"),
    *_texts("ServiceCategory", "ServiceSubcategory", "ServiceName"),
    *_texts("SkuId", "SkuMeter", "SkuPriceId"),
    Column("SkuPriceDetails", Kind.PAIRS),
    *_texts("PricingCategory"),
    *_decimals("PricingQuantity"),
    *_texts("PricingUnit"),
    *_decimals("ConsumedQuantity"),
    *_texts("ConsumedUnit"),
    *_decimals("ListUnitPrice", "ContractedUnitPrice"),
    *_decimals("ListCost", "ContractedCost", "EffectiveCost", "BilledCost"),
    *_texts("BillingCurrency", "PricingCurrency"),
    *_decimals("PricingCurrencyListUnitPrice", "PricingCurrencyContractedUnitPrice"),
    *_decimals("PricingCurrencyEffectiveCost"),
    *_texts("CommitmentDiscountStatus"),  # always null: rules of quantities speak of it
    Column("Tags", Kind.PAIRS),
)
CUSTOM: tuple[Column, ...] = (
    *_texts("x_Component", "x_TariffVersion", "x_Model", "x_KeyId", "x_EndUser"),
    *_texts("x_SemanticUnitState", "x_ConfidenceTier"),
    *_decimals("x_RequestCount", "x_CompleteUnits", "x_FragmentUnits", "x_InformationBits"),
    *_texts("x_EnergyClass"),
    *_decimals("x_EnergyJoules", "x_ReviewFee"),
)
COLUMNS = STANDARD + CUSTOM
NAMES = tuple(column.name for column in COLUMNS)

Row = dict[str, Any]  # by column name; what is not in it is null
