"""`dflash invoice`, from setting the parties to a paid invoice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from billing_world import add_tenant, settlement
from click.testing import CliRunner
from invoice_world import Month, at, priced
from sqlalchemy import Engine

from billing.invoices.benchmark import measure
from billing.invoices.cli import invoice
from metering.cli_context import CliContext
from metering.database import transaction


@pytest.fixture
def actions() -> list[str]:
    return []


@pytest.fixture
def run(
    sqlite_database: Engine,
    sqlite_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    actions: list[str],
) -> Any:
    month = Month(sqlite_database, settlement(tmp_path), monkeypatch)
    with transaction(sqlite_database) as connection:
        add_tenant(connection, credit="10", pays=priced())
    month.serve("req_1", ended_us=at("2026-11-10 12:00"), tokens=250_000)
    month.now_us = at("2026-12-02 00:00")

    def record(_connection: object, *, action: str, **_entry: object) -> None:
        actions.append(action)

    context = CliContext(tmp_path, sqlite_url, record=record)

    def call(*words: str, fails: bool = False) -> str:
        result = CliRunner().invoke(invoice, list(words), obj=context)
        assert (result.exception is not None) is fails, result.output
        return result.output

    call.month = month  # type: ignore[attr-defined]
    return call


def test_a_month_goes_from_preview_to_paid(run: Any, tmp_path: Path, actions: list[str]) -> None:
    run("customer", "ten_1", "--name", "Acme", "--tax-percent", "19")
    run("customer", "ten_1", "--tax-from", "2026-12-01", fails=True)
    run("customer", "ten_1", "--tax-percent", "50", "--tax-from", "2026-12-01")
    run("issuer", "--pause-days", "7", "--no-pause", fails=True)
    run("issuer", "--name", "Example", "--grace-hours", "36")
    assert "1.19" in run("preview", "--period", "2026-11", "--tenant", "ten_1")
    assert "1 drafted" in run("close", "--period", "2026-11")
    run.month.now_us = at("2026-12-02 12:00")
    assert "1 issued" in run("close", "--period", "2026-11")
    assert "1 closed before" in run("close", "--period", "2026-11")
    (row,) = json.loads(run("list", "--json"))
    assert (row["number"], row["total"], row["due"]) == ("INV-000001", "1.19", "0.19")
    whole = json.loads(run("show", "INV-000001", "--format", "json"))
    assert whole["customer"]["name"] == "Acme"
    paper = tmp_path / "invoice.pdf"
    run("show", "INV-000001", "--format", "pdf", "--output", str(paper))
    assert paper.read_bytes().startswith(b"%PDF-")
    run("credit", "INV-000001", "0.09", "--reason", "goodwill")
    assert "paid" in run("pay", "INV-000001", "0.10", "--cause", "wire")
    assert "0 differences" in run("check", "--whole")
    run("void", "INV-000001", fails=True)
    assert actions == [
        "invoice.customer_set",
        "invoice.customer_set",
        "invoice.issuer_set",
        "invoice.issued",
        "invoice.credited",
        "invoice.paid",
    ]


def test_a_tax_rate_that_is_none_is_refused(run: Any) -> None:
    run("customer", "ten_1", "--tax-percent", "101", fails=True)
    run("customer", "ten_1", "--tax-percent", "x", fails=True)


@pytest.mark.parametrize("series", ["CN", "", "inv", "A" * 17])
def test_a_series_that_is_none_or_the_credit_notes_is_refused(run: Any, series: str) -> None:
    run("issuer", "--series", series, fails=True)


def test_the_benchmark_measures_a_close_and_admissions_beside_it() -> None:
    measured = measure(requests=300, tenants=3, lines=2)
    assert measured["rated_lines"] == 600
    assert measured["close_to_read_ratio"] > 0
    assert measured["admissions"] >= 0
