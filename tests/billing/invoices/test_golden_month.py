"""The month that `docs/golden-month.md` computes by hand comes out as written there, to the nano.

The page is the expectation: its tables of lines and sums are read, and compared with the invoices.
"""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import pytest
from billing_world import balances, books_balance
from golden_month import bill, golden_month
from invoice_world import Month
from sqlalchemy import Engine

from billing.invoices.queries import Invoice
from billing.money import NANO
from metering.database import snapshot

PAGE = Path(__file__).parents[3] / "docs" / "golden-month.md"
INVOICE = re.compile(r"^### (INV-\d+) .*?$(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)
LINE = re.compile(
    r"^\| ([\d-]+) \| (\w[\w-]*) \| (.*?) \| (\S+) \| (\S+) \| (\S+) \|$", re.MULTILINE
)
BOOKS = re.compile(r"^\| ([a-z_]+) \| (-?[\d.]+) \| (-?[\d.]+) \| (-?[\d.]+) \|$", re.MULTILINE)
SUM = re.compile(r"^- (subtotal|tax|total|from credit|to pay|rounding): (\S+)$", re.MULTILINE)


@pytest.fixture
def golden(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    return golden_month(database, tmp_path, monkeypatch)


def test_the_golden_month_is_billed_as_computed_by_hand(golden: Month) -> None:
    bill(golden)
    written = dict(INVOICE.findall(PAGE.read_text(encoding="utf-8")))
    assert list(written) == ["INV-000001", "INV-000002", "INV-000003", "INV-000004"]
    for number, section in written.items():
        invoice = golden.invoice(number)
        assert lines_of(invoice) == LINE.findall(section), number
        assert sums_of(invoice) == dict(SUM.findall(section)), number
    books = BOOKS.findall(PAGE.read_text(encoding="utf-8"))
    owners = ("ten_berlin", "ten_york", None)
    with snapshot(golden.database) as connection:
        books_balance(connection)
        for place, owner in enumerate(owners, start=1):
            found = {kind: plain(nano) for kind, nano in balances(connection, owner).items()}
            assert found == {row[0]: row[place] for row in books if row[place] != "0"}, owner


def lines_of(invoice: Invoice) -> list[tuple[str, ...]]:
    return [
        (
            line.period,
            line.component,
            line.detail or "–",
            line.quantity,
            plain(line.amount_nano),
            f"{Decimal(line.amount_minor) / 100:.2f}",
        )
        for line in invoice.lines
        if line.kind not in ("tax", "credit")
    ]


def sums_of(invoice: Invoice) -> dict[str, str]:
    row = invoice.row
    sums = {
        "subtotal": row.subtotal_minor,
        "tax": row.tax_minor,
        "total": row.total_minor,
        "from credit": row.credit_minor,
        "to pay": row.due_minor,
    }
    exact = sum(line.amount_nano for line in invoice.lines)
    rounding = row.due_minor * row.minor_nano - exact
    return {name: f"{Decimal(minor) / 100:.2f}" for name, minor in sums.items()} | {
        "rounding": plain(rounding)
    }


def plain(nano: int) -> str:
    return f"{Decimal(nano) / NANO:.9f}"
