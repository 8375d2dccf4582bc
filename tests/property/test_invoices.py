"""Whatever order events come in, however often, and whenever months are closed between them.

The same requests give the same exact total and the same tax for each month of service, whatever the
rate became later, corrections included; the lines of every invoice add up; entries sum to zero; and
no invoice, once final, changes.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from billing_world import add_tenant, books_balance, settlement
from databases import Databases, PostgresServer, SqliteFiles, fresh, reopened
from focus_cases import (
    assert_billed_as_invoiced,
    focus_rows,
    is_unbilled,
    keeps_the_rules,
)
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from invoice_world import Month, at, per_service_period, priced
from sqlalchemy import Engine, update

from billing import periods
from billing.invoices import closing, issuing, minor_units
from billing.money import round_nano
from metering.database import snapshot, transaction
from metering.tables import tenants

CENT = 10**7
ZONE = "Europe/Berlin"
LABELS = ("2026-09", "2026-10", "2026-11")  # the clocks change in October
TIERS = [{"up_to": "700", "per_million": "30"}, {"per_million": "11"}]
TERMS = priced(
    volume={"model": "graduated", "measure": "output_tokens", "tiers": TIERS},
    base={"model": "flat", "amount": "0.05"},
    share={"model": "percentage", "percent": "3"},
    gift={"model": "allowance", "component": "output", "free": "150"},
)

requests = st.lists(
    st.fixed_dictionaries(
        {
            "month": st.integers(0, 2),
            "at_us": st.sampled_from([0, 1, 3600 * 10**6, 20 * 86_400 * 10**6, -1]),
            "tokens": st.integers(1, 900),
            "comes": st.integers(0, 4),  # before which close
            "again": st.booleans(),
            "on_account": st.booleans(),
        }
    ),
    max_size=7,
)

# What tax is from before each step on: a month's is that at its end, which step it is closed in.
rates = st.lists(st.sampled_from(["0", "7", "19", "33.3"]), min_size=5, max_size=5)

_PLAIN = {"month": 0, "at_us": 1, "tokens": 900, "again": False, "on_account": True}
# September's invoice goes, October's bills some of September, and September is closed anew.
VOIDED_AFTER_WHAT_CAME_LATE = [_PLAIN | {"comes": 0}, _PLAIN | {"comes": 1}]


def end_of(each: dict[str, Any]) -> int:
    period = periods.month(LABELS[each["month"]], ZONE)
    return period.end_us - 1 if each["at_us"] < 0 else period.start_us + each["at_us"]


def expected(chosen: list[dict[str, Any]]) -> dict[str, int]:
    """The totals by hand: each month's requests, and prices of what the month holds."""
    totals = {}
    for number, label in enumerate(LABELS):
        tokens = [each["tokens"] for each in chosen if each["month"] == number]
        charged_in, charged_out = 20_000 * len(tokens), sum(4_000 * each for each in tokens)
        used = sum(tokens)
        tiered = min(used, 700) * 30_000 + max(0, used - 700) * 11_000
        share = round_nano(Decimal(charged_in + charged_out).scaleb(-9) * Decimal("0.03"))
        gift = 4_000 * min(used, 150)
        totals[label] = charged_in + charged_out + tiered + 50_000_000 + share - gift
    return totals


def expected_taxes(chosen: list[dict[str, Any]], percents: list[str]) -> dict[str, int]:
    """The tax by hand: of each month as a whole, at the rate that was in force at its end."""
    totals = expected(chosen)
    return {
        label: minor_units.tax(minor_units.rounded(totals[label], CENT), Decimal(percent))
        for label, percent in zip(LABELS, percents, strict=False)
    }


def taxed(month: Month) -> dict[str, int]:
    totals = dict.fromkeys(LABELS, 0)
    for invoice in month.standing():
        for line in invoice.lines:
            if line.kind == "tax":
                totals[line.period] += line.amount_minor
    return totals


def run(
    url: str, folder: Path, chosen: list[dict[str, Any]], voids: bool, percents: list[str]
) -> None:
    database = reopened(url)
    with pytest.MonkeyPatch.context() as patch:
        month = Month(database, settlement(folder), patch)
        month.now_us = at("2026-08-01 00:00")
        with transaction(database) as connection:
            month.settlement._signer.register(connection)
            add_tenant(connection, credit="5", pays=TERMS)
        with transaction(database) as connection:
            connection.execute(update(tenants).values(time_zone=ZONE))
        final: dict[str, Any] = {}
        for step, percent in enumerate(percents):
            month.terms("ten_1", name="Acme", tax_percent=Decimal(percent))
            for number, each in enumerate(chosen):
                if each["comes"] == step:
                    serve(month, f"req_{number}", each)
            if step < 3:
                month.now_us = periods.month(LABELS[step], ZONE).end_us + 3 * 86_400 * 10**6
                list(closing.close(database, LABELS[step]))
            elif step == 3:
                catch_up(month)
            if voids and step == 2:
                void_one(month, final)
            keep(month, final)
        catch_up(month)
        month.check()
        assert per_service_period(month.standing()) == expected(chosen)
        assert taxed(month) == expected_taxes(chosen, percents)
        for invoice in month.standing():
            adds_up(invoice)
        exported(database)
        with snapshot(database) as connection:
            books_balance(connection)
    database.dispose()


def exported(database: Engine) -> None:
    """The FOCUS rows of every month add up to its invoices, each charge on the one it is on, and
    leave nothing unbilled.
    """
    for label in LABELS:
        found = focus_rows(database, "ten_1", label)
        keeps_the_rules(found)
        assert_billed_as_invoiced(database, "ten_1", label, found)
        assert not [row for row in found if is_unbilled(row)]
        assert not [row for row in found if "drawn up" in row["ChargeDescription"]]


def catch_up(month: Month) -> None:
    """Bill all that is left, of months voided meanwhile, too."""
    month.now_us += 1
    for label in LABELS:
        list(closing.close(month.database, label))
        closing.correct(month.database, label, "ten_1")


def serve(month: Month, request_id: str, each: dict[str, Any]) -> None:
    month.now_us += 1
    when = end_of(each)
    charged = month.serve(request_id, ended_us=when, tokens=each["tokens"])
    if each["on_account"]:
        month.on_account(request_id, "ten_1", charged, at_us=when)
    if each["again"]:
        month.settle_again(request_id, ended_us=when, tokens=each["tokens"])


def void_one(month: Month, final: dict[str, Any]) -> None:
    for invoice in month.standing():
        if invoice.row.state == "final":
            month.now_us += 1
            with transaction(month.database) as connection:
                assert invoice.row.id is not None
                issuing.void(connection, invoice.row.id)
            final.pop(invoice.row.id, None)
            return


def keep(month: Month, final: dict[str, Any]) -> None:
    """No invoice that was final before reads otherwise now."""
    for invoice in month.standing():
        assert final.setdefault(invoice.row.id, invoice) == invoice


def adds_up(invoice: Any) -> None:
    row = invoice.row
    minors = {
        kind: sum(line.amount_minor for line in invoice.lines if line.kind in kinds)
        for kind, kinds in (
            ("charges", ("usage", "adjustment", "period")),
            ("tax", ("tax",)),
            ("credit", ("credit",)),
        )
    }
    assert minors["charges"] == row.subtotal_minor
    assert minors["charges"] + minors["tax"] == row.total_minor
    assert sum(minors.values()) == row.due_minor


def check(databases: Databases, folder: Path, examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(requests, st.booleans(), rates)
    @example(VOIDED_AFTER_WHAT_CAME_LATE, True, ["19", "0", "7", "33.3", "0"])
    def holds(chosen: list[dict[str, Any]], voids: bool, percents: list[str]) -> None:
        with fresh(databases) as url:
            run(url, folder, chosen, voids, percents)

    holds()


def test_any_order_of_events_and_closes_bills_each_month_the_same_on_sqlite(
    sqlite_files: SqliteFiles, tmp_path: Path
) -> None:
    check(sqlite_files, tmp_path, examples=10)


def test_any_order_of_events_and_closes_bills_each_month_the_same_on_postgresql(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    check(postgres_server, tmp_path, examples=4)
