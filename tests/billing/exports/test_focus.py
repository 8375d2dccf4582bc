"""FOCUS rows of the golden month: what they say, what they add up to, and what they must not be."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from billing_world import add_tenant, settlement
from focus_cases import assert_billed_as_invoiced, billed, focus_rows, is_unbilled, keeps_the_rules
from golden_month import bill, golden_month
from invoice_world import DAY_US, Month, at, priced
from sqlalchemy import Engine

from billing.exports.columns import NAMES, STANDARD
from billing.invoices import credit_notes, issuing, parties
from billing.ledger import credits
from billing.tariffs import Tariff
from metering.database import transaction

WHO = {"end_user": "eve", "tags": {"team": "blue", "app": "ü"}, "project_id": "prj_1"}


@pytest.fixture
def golden(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    return golden_month(database, tmp_path, monkeypatch)


@pytest.fixture
def month(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    """`ten_1` pays 1 a million tokens in and 4 out, and has credit for all of it."""
    return made(Month(database, settlement(tmp_path), monkeypatch), priced())


@pytest.fixture
def monthly(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    """The same, and 20 a month."""
    pays = priced(base={"model": "flat", "amount": "20"})
    return made(Month(database, settlement(tmp_path), monkeypatch), pays)


def made(month: Month, pays: Tariff) -> Month:
    with transaction(month.database) as connection:
        month.settlement._signer.register(connection)
        add_tenant(connection, credit="1000", pays=pays)
    return month


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
    assert corrected <= {"base", "free", "tax"}


def test_tax_stands_in_the_month_of_service_that_it_is_of(month: Month) -> None:
    def taxed(percent: str, from_us: int | None = None) -> None:
        with transaction(month.database) as connection:
            found = parties.Customer("Acme", tax_percent=Decimal(percent))
            parties.set_customer(connection, "ten_1", found, from_us)

    taxed("19")
    november = at("2026-11-01 00:00")
    month.serve("req_1", ended_us=at("2026-10-15 12:00"), tokens=25_000_000, input_tokens=0)
    month.now_us = at("2026-11-05 00:00")
    month.issued("2026-10")
    taxed("20", november)
    month.serve("req_late", ended_us=at("2026-10-16 12:00"), tokens=2_500_000, input_tokens=0)
    month.serve("req_2", ended_us=at("2026-11-15 12:00"), tokens=5_000_000, input_tokens=0)
    month.now_us = at("2026-12-05 00:00")
    month.issued("2026-11")
    rows = focus_rows(month.database, "ten_1", "2026-11")
    keeps_the_rules(rows)
    assert_billed_as_invoiced(month.database, "ten_1", "2026-11", rows)
    taxes = [row for row in rows if row["ChargeCategory"] == "Tax"]
    said = ("ChargeDescription", "ChargePeriodStart", "ChargePeriodEnd", "ChargeClass")
    assert [[row["BilledCost"], *(row.get(name) for name in said)] for row in taxes] == [
        [Decimal(4), "VAT (20 %)", november, at("2026-12-01 00:00"), None],
        [Decimal("1.9"), "VAT (19 %)", at("2026-10-01 00:00"), november, "Correction"],
    ]


def bearers(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], tuple[Decimal, Decimal]]:
    """By invoice, project and month of service: what output costs, and of how many requests."""
    found: dict[tuple[Any, ...], tuple[Decimal, Decimal]] = {}
    for row in rows:
        if row.get("x_Component") in {"input", "output"}:
            late = row["ChargePeriodStart"] < row["BillingPeriodStart"]
            key = (row.get("InvoiceId"), row.get("SubAccountId"), "late" if late else "own")
            cost, count = found.get(key, (Decimal(0), Decimal(0)))
            cost += row["BilledCost"] if row["x_Component"] == "output" else 0
            found[key] = (cost, count + (row.get("x_RequestCount") or 0))
    return found


def test_a_month_that_is_closed_anew_after_a_void_keeps_its_days_and_projects(
    monthly: Month,
) -> None:
    def serve(request_id: str, when: str, project: str) -> None:
        at_us = at(when)
        carries = {"project_id": project, "end_user": "eve"}
        nano = monthly.serve(request_id, ended_us=at_us, tokens=500_000, carries=carries)
        monthly.on_account(request_id, "ten_1", nano, at_us=at_us)

    def exported(label: str) -> list[dict[str, Any]]:
        rows = focus_rows(monthly.database, "ten_1", label)
        keeps_the_rules(rows)
        assert_billed_as_invoiced(monthly.database, "ten_1", label, rows)
        assert not [row for row in rows if "drawn up" in row["ChargeDescription"]]
        return rows

    monthly.now_us = at("2026-11-01 00:00")
    serve("req_1", "2026-10-05 10:00", "prj_1")
    serve("req_2", "2026-10-06 10:00", "prj_1")
    monthly.now_us = at("2026-11-04 00:00")
    october = monthly.issued("2026-10")
    monthly.now_us += DAY_US
    serve("req_3", "2026-10-20 00:00", "prj_2")  # late, so on November's
    serve("req_4", "2026-11-20 00:00", "prj_2")
    monthly.now_us = at("2026-12-04 00:00")
    november = monthly.issued("2026-11")
    monthly.now_us += DAY_US
    with transaction(monthly.database) as connection:
        assert october.row.id is not None
        issuing.void(connection, october.row.id)
    monthly.now_us += DAY_US
    late = {
        (november.row.number, "prj_2", "late"): (Decimal(2), Decimal(1)),
        (november.row.number, "prj_2", "own"): (Decimal(2), Decimal(1)),
    }
    assert bearers(exported("2026-11")) == late
    # On no invoice, until its month is closed again.
    assert bearers(exported("2026-10")) == {(None, "prj_1", "own"): (Decimal(4), Decimal(2))}
    serve("req_5", "2026-10-21 00:00", "prj_3")
    monthly.now_us += DAY_US
    again = monthly.issued("2026-10")
    assert bearers(exported("2026-11")) == late
    rows = exported("2026-10")
    assert bearers(rows) == {
        (again.row.number, "prj_1", "own"): (Decimal(4), Decimal(2)),
        (again.row.number, "prj_3", "own"): (Decimal(2), Decimal(1)),
    }
    days = {row["ChargePeriodStart"] for row in rows if row.get("x_Component") == "output"}
    assert days == {at(f"2026-10-{day:02} 00:00") for day in (5, 6, 21)}
    # Nobody else has billed the month's price, so it corrects nothing.
    (base,) = (row for row in rows if row.get("x_Component") == "base")
    assert (base["ChargeCategory"], base["BilledCost"]) == ("Usage", Decimal(20))
    assert "ChargeClass" not in base


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


def test_an_invoices_rows_name_whom_it_names(month: Month) -> None:
    month.terms(name="Old Operator Ltd")
    month.terms("ten_1", name="Acme GmbH")
    month.serve("req_1", ended_us=at("2026-11-10 00:00"), tokens=999_995)
    month.now_us = at("2026-12-05 00:00")
    month.close("2026-11")
    month.serve("req_2", ended_us=at("2026-12-04 00:00"))
    month.terms(name="New Operator Inc")
    month.terms("ten_1", name="Acme Holding")
    names = {
        (
            row["InvoiceIssuerName"],
            row["ProviderName"],
            row["PublisherName"],
            row["BillingAccountName"],
        )
        for row in focus_rows(month.database, "ten_1", "2026-11")
        if row.get("InvoiceId")
    }
    assert names == {("Old Operator Ltd",) * 3 + ("Acme GmbH",)}
    running = focus_rows(month.database, "ten_1", "2026-12")
    assert {(row["InvoiceIssuerName"], row["BillingAccountName"]) for row in running} == {
        ("New Operator Inc", "Acme Holding")
    }


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
