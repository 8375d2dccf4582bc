"""The ledger as a machine: anything that can happen to money, in any order, twice, on both bases.

Requests, credit, reviews, prices, months and invoices, with a crash before any commit. After every
step the books are square, no guarded account is negative, projections equal the transfers, each
tenant's grants equal what it has, holds and paid, invoices equal the receivables, and no invoice
has changed. At the end of every run all books reconcile: rating again gives the same lines, and
every closed month was billed what its requests came to.

`pytest tests/property/test_ledger.py --examples 500` takes longer and finds more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from billing_world import settlement
from databases import Databases, PostgresServer, SqliteFiles
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test
from money_credit import Credit
from money_invoices import Invoicing
from money_requests import Requests, ends, orders, units
from money_reviews import Reviews
from money_world import HOLD_US, TENANTS

from metering.events import UnitSummary


class Money(Requests, Credit, Reviews, Invoicing):
    """Everything at once."""

    @rule(
        tenant=st.sampled_from(TENANTS),
        promotional=st.booleans(),
        order=orders,
        added=st.lists(units, max_size=4),
        end=ends,
    )
    def serve_over_an_expiry(
        self,
        *,
        tenant: str,
        promotional: bool,
        order: dict[str, Any],
        added: list[UnitSummary],
        end: dict[str, Any],
    ) -> None:
        """A request that holds what a lot has, and ends when the lot has expired."""
        self.issue(
            tenant=tenant,
            amount=300_000,
            promotional=promotional,
            priority=1,
            lasts_us=HOLD_US // 2,
            begins_us=0,
            crashes=False,
        )
        request_id = self.start(tenant, order)
        self.sweep(elapsed_us=HOLD_US // 2)
        if request_id is not None:
            self.commit(request_id, added)
            self.end(request_id, end)


@pytest.fixture
def examples(request: pytest.FixtureRequest) -> int | None:
    return request.config.getoption("--examples")


def drive(databases: Databases, folder: Path, examples: int) -> None:
    own = {"databases": databases, "settlement": settlement(folder)}
    machine = type("MoneyMachine", (Money,), own)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_money_is_conserved_whatever_happens_on_sqlite(
    sqlite_files: SqliteFiles, tmp_path: Path, examples: int | None
) -> None:
    drive(sqlite_files, tmp_path, examples=examples or 18)


def test_money_is_conserved_whatever_happens_on_postgresql(
    postgres_server: PostgresServer, tmp_path: Path, examples: int | None
) -> None:
    drive(postgres_server, tmp_path, examples=examples or 10)
