"""FOCUS rows of the golden month: what they say, what they add up to, and what they must not be."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from billing_world import add_tenant, settlement
from focus_cases import assert_billed_as_invoiced, billed, focus_rows, is_unbilled, keeps_the_rules
from golden_month import bill, golden_month
from invoice_world import Month, at, priced
from sqlalchemy import Engine

from billing.exports.columns import NAMES, STANDARD
from billing.invoices import credit_notes
from billing.ledger import credits
from metering.database import transaction

WHO = {"end_user": "eve", "tags": {"team": "blue", "app": "ü"}, "project_id": "prj_1"}


@pytest.fixture
def golden(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    return golden_month(database, tmp_path, monkeypatch)


@pytest.fixture
def month(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    """`ten_1` pays 1 a million tokens in and 4 out, and has credit for all of it."""
    made = Month(database, settlement(tmp_path), monkeypatch)
    with transaction(database) as connection:
        made.settlement._signer.register(connection)
        add_tenant(connection, credit="1000", pays=priced())
    return made


def total(rows: list[dict[str, Any]], name: str) -> Decimal:
    return sum((row[name] for row in rows if row.get(name) is not None), Decimal(0))


def test_the_billed_costs_of_every_document_add_up_to_it(golden: Month) -> None:
    bill(golden)
    invoice = golden.standing("ten_berlin")[0]
    with transaction(golden.database) as connection:
        assert invoice.row.id
        credit_notes.credit(connection, invoice.row.id, 119, reason="Slow", reference="r1")
    documents = set()
    for tenant_id in ("ten_berlin", "ten_york"):
        for label in ("2026-10", "2026-11"):
            rows = focus_rows(golden.database, tenant_id, label)
            keeps_the_rules(rows)
            assert_billed_as_invoiced(golden.database, tenant_id, label, rows)
            assert not [row for row in rows if is_unbilled(row)]
            assert not [row for row in rows if "drawn up" in row["ChargeDescription"]]
            documents |= {number for number in billed(rows) if number}
    assert len(documents) == 5
    berlin = focus_rows(golden.database, "ten_berlin", "2026-10")
    note = [row for row in berlin if row.get("x_Component") == "credit_note"]
    assert [(row["ChargeCategory"], row["BilledCost"]) for row in note] == [
        ("Adjustment", Decimal(-1)),
        ("Tax", Decimal("-0.19")),
    ]


def test_usage_that_came_late_is_on_the_invoice_that_billed_it(golden: Month) -> None:
    bill(golden)
    november = focus_rows(golden.database, "ten_berlin", "2026-11")
    late = [row for row in november if row["ChargePeriodStart"] < row["BillingPeriodStart"]]
    assert {row["InvoiceId"] for row in late} == {"INV-000004"}
    outputs = [row for row in late if row["x_Component"] == "output"]
    assert [row["ConsumedQuantity"] for row in outputs] == [Decimal(200_000)]
    assert outputs[0]["ChargePeriodStart"] == at("2026-10-20 00:00", "Europe/Berlin")
    # What it does to the month's own prices corrects a month that was billed.
    corrected = {row["x_Component"] for row in late if row.get("ChargeClass") == "Correction"}
    assert corrected <= {"base", "free"}


def test_rows_say_units_tiers_joules_and_who_is_to_bear_them(month: Month) -> None:
    when = at("2026-11-05 10:00")
    month.now_us = when
    month.serve("req_1", ended_us=when, tokens=1000, carries=WHO)
    month.serve("req_2", ended_us=when + 1, tokens=500, carries=WHO)
    month.serve("req_3", ended_us=when + 2, tokens=500)
    rows = focus_rows(month.database, "ten_1", "2026-11")
    keeps_the_rules(rows)
    usage = [row for row in rows if row["ChargeCategory"] == "Usage"]
    assert [row for row in usage if not is_unbilled(row)] == []
    mine = [row for row in usage if row["x_EndUser"] == "eve"]
    assert {(row["SubAccountId"], row["SubAccountName"]) for row in mine} == {("prj_1", "Research")}
    assert [row["Tags"] for row in mine] == [{"team": "blue", "app": "ü"}] * 2
    output = next(row for row in mine if row["x_Component"] == "output")
    assert (output["x_SemanticUnitState"], output["x_ConfidenceTier"]) == ("complete", "standard")
    assert (output["PricingQuantity"], output["PricingUnit"]) == (
        Decimal("0.0015"),
        "1000000 Tokens",
    )
    assert output["ContractedUnitPrice"] == 4
    assert output["BilledCost"] == Decimal("0.006")
    # A request's joules and units stand on one of its rows, so that they add up.
    assert total(mine, "x_RequestCount") == 2
    assert total(mine, "x_CompleteUnits") == 2
    assert total(mine, "x_EnergyJoules") == Decimal("24.6")
    assert {row["x_EnergyClass"] for row in mine} == {"estimated"}


def test_credit_that_was_bought_is_billed_once_and_what_it_pays_for_is_not(month: Month) -> None:
    with transaction(month.database) as connection:
        credits.grant(connection, "ten_1", 7_000_000_000, "second")
    month.serve("req_1", ended_us=month.now_us + 1, tokens=2_500_000)
    month.now_us = at("2026-12-04 00:00")
    month.close("2026-11")
    rows = focus_rows(month.database, "ten_1", "2026-11")
    bought = [row for row in rows if row["ChargeCategory"] == "Purchase"]
    assert [row["BilledCost"] for row in bought][-1] == 7
    assert {row["EffectiveCost"] for row in bought} == {Decimal(0)}
    totals = billed(rows)
    assert totals == {None: total(bought, "BilledCost"), "INV-000001": Decimal(0)}
    assert total(rows, "EffectiveCost") == Decimal("10.00")


def test_columns_of_our_own_come_last() -> None:
    assert [name for name in NAMES if name.startswith("x_")] == list(NAMES[len(STANDARD) :])
