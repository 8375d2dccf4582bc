"""FOCUS rows of a database, and what FOCUS 1.2 asks of each and of all of them.

The rules are those of the specification's column definitions; `tests/focus/validate.py` has the
specification's own validator look at the same files.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

from sqlalchemy import Engine, select

from billing.exports import focus
from billing.exports.columns import COLUMNS, NAMES, PLACES, Kind, Row
from billing.invoices.tables import credit_notes, invoices
from metering.database import snapshot

PROJECTS = {"prj_1": "Research"}
MANDATORY = {
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
}
CATEGORIES = {"Usage", "Purchase", "Tax", "Credit", "Adjustment"}
FREQUENCIES = {"One-Time", "Recurring", "Usage-Based"}
PRICES = {
    "ListUnitPrice",
    "ContractedUnitPrice",
    "PricingQuantity",
    "PricingUnit",
    "PricingCategory",
    "SkuPriceId",
}


def focus_rows(database: Engine, tenant_id: str, label: str) -> list[Row]:
    with snapshot(database) as connection:
        return list(focus.rows(connection, tenant_id, label, PROJECTS))


def is_unbilled(row: Row) -> bool:
    return row.get("InvoiceId") is None and row["ChargeCategory"] != "Purchase"


def billed(rows: Iterable[Row]) -> dict[str | None, Decimal]:
    totals: defaultdict[str | None, Decimal] = defaultdict(Decimal)
    for row in rows:
        totals[row.get("InvoiceId")] += row["BilledCost"]
    return dict(totals)


def assert_billed_as_invoiced(
    database: Engine, tenant_id: str, label: str, rows: list[Row]
) -> None:
    """The billed costs of each document add up to what it asks for, to the cent and exactly."""
    invoice, note = invoices.c, credit_notes.c
    with snapshot(database) as connection:
        standing = connection.execute(
            select(invoice.number, invoice.due_minor, invoice.minor_nano).where(
                invoice.tenant_id == tenant_id,
                invoice.period == label,
                invoice.state.not_in(["draft", "void"]),
            )
        ).all()
        noted = connection.execute(
            select(note.number, -note.amount_minor, invoice.minor_nano)
            .join(invoices, invoice.id == note.invoice_id)
            .where(invoice.tenant_id == tenant_id, invoice.period == label)
            .where(invoice.state != "void")
        ).all()
    asked = {number: Decimal(minor * nano).scaleb(-9) for number, minor, nano in standing + noted}
    totals = billed(rows)
    totals.pop(None, None)
    assert totals == {number: due for number, due in asked.items() if due or number in totals}


def keeps_the_rules(rows: Iterable[Row]) -> None:
    parents: dict[str, str] = {}
    for row in rows:
        assert set(row) <= set(NAMES)
        assert {name for name in MANDATORY if row.get(name) is None} == set(), row
        assert row["ChargeCategory"] in CATEGORIES
        assert row["ChargeFrequency"] in FREQUENCIES
        assert row["BillingPeriodStart"] < row["BillingPeriodEnd"]
        assert row["ChargePeriodStart"] < row["ChargePeriodEnd"]
        assert re.fullmatch("[A-Z]{3}", row["BillingCurrency"])
        assert row.get("ChargeClass") in (None, "Correction")
        given = {name for name in PRICES if row.get(name) is not None}
        if row["ChargeCategory"] in ("Usage", "Purchase") and row.get("ChargeClass") is None:
            assert given == PRICES, row
        if row["ChargeCategory"] == "Tax":
            assert not given
        if row["ChargeCategory"] != "Usage":
            assert row.get("ConsumedQuantity") is None
        if row["ChargeCategory"] == "Purchase":
            assert row["ChargeFrequency"] != "Usage-Based"
        _multiplies(row)
        assert (row.get("ConsumedQuantity") is None) == (row.get("ConsumedUnit") is None)
        assert (row.get("SubAccountId") is None) == (row.get("SubAccountName") is None)
        if sku := row.get("SkuPriceId"):
            assert parents.setdefault(sku, row["SkuId"]) == row["SkuId"]
        for column in COLUMNS:
            if column.kind is Kind.DECIMAL and (value := row.get(column.name)) is not None:
                assert isinstance(value, Decimal), column
                assert -value.as_tuple().exponent <= PLACES, (column, value)


def _multiplies(row: Row) -> None:
    for name in ("List", "Contracted"):
        price = row.get(f"{name}UnitPrice")
        if price is not None:
            assert price >= 0
            assert price * row["PricingQuantity"] == row[f"{name}Cost"], row
