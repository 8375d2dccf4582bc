"""Past months under other tariffs; under the one that was in force, the ledger's own lines."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from billing_cases import summary, tariff, unit
from billing_world import add_request, ended
from golden_month import TERMS, bill, golden_month
from invoice_world import Month, at
from sqlalchemy import Engine, select, update
from unguarded import unguard

from billing import refunds
from billing.errors import TariffConflict, UsageGone
from billing.gate import HoldGate
from billing.invoices.lines import InvoiceLine
from billing.preview import Preview, preview
from billing.tables import rated_lines
from billing.tariffs import Tariff
from metering.database import snapshot, transaction
from metering.tables import request_summaries

MONTHS = [("ten_berlin", "2026-10"), ("ten_berlin", "2026-11"), ("ten_york", "2026-10")]
FREE = tariff(output={"per_million": "0"})


@pytest.fixture
def golden(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    return golden_month(database, tmp_path, monkeypatch)


def look(month: Month, tenant_id: str, label: str, draft: Tariff) -> Preview:
    with snapshot(month.database) as connection:
        return preview(connection, tenant_id, label, draft)


def unversioned(lines: tuple[InvoiceLine, ...]) -> list[InvoiceLine]:
    return [replace(line, tariff_version_id=None) for line in lines]


def changed(**fields: Any) -> Tariff:
    return msgspec.structs.replace(TERMS, **fields)


def test_under_the_tariff_in_force_the_lines_are_the_ledgers_bit_for_bit(golden: Month) -> None:
    bill(golden)  # components of every kind, a rejection, what came late, prices of the month
    with transaction(golden.database) as connection:
        refunds.correct(
            connection,
            golden.settlement._signer,
            tenant_id="ten_berlin",
            request_id="req_b4",
            amount_nano=123,
            reference="r1",
            reason="slow",
        )
    for tenant_id, label in MONTHS:
        found = look(golden, tenant_id, label, TERMS)
        assert list(found.lines) == unversioned(found.booked), (tenant_id, label)
        assert found.total_nano == found.booked_nano
        assert found.requests > 0


def test_what_was_not_covered_then_is_not_covered_now(golden: Month) -> None:
    when = at("2026-10-12 12:00")
    with transaction(golden.database) as connection:
        admitted = add_request(
            connection, "req_capped", "ten_york", max_tokens=5000, started_at_us=when
        )
        HoldGate().admit(connection, admitted, expires_at_us=2**52)
        final = summary(
            unit(3_000_000),
            request_id="req_capped",
            tenant_id="ten_york",
            started_at_us=when,
            ended_at_us=when,
        )
        with pytest.MonkeyPatch.context() as patch:  # all credit is gone meanwhile
            patch.setattr("billing.ledger.funding.available", lambda _found: 0)
            ended(connection, golden.settlement, final)
        uncovered = connection.scalar(
            select(rated_lines.c.amount_nano).where(rated_lines.c.component == "write_off")
        )
    assert uncovered is not None
    assert uncovered < 0
    found = look(golden, "ten_york", "2026-10", TERMS)
    assert list(found.lines) == unversioned(found.booked)
    assert look(golden, "ten_york", "2026-10", FREE).total_nano == 0


def test_another_price_changes_what_it_prices_and_nothing_else(golden: Month) -> None:
    bill(golden)
    assert TERMS.input
    doubled = changed(input=msgspec.structs.replace(TERMS.input, per_million=Decimal(2)))
    before = look(golden, "ten_berlin", "2026-10", TERMS)
    after = look(golden, "ten_berlin", "2026-10", doubled)
    inputs = {found: total(found, "input") for found in (before, after)}
    assert inputs[after] == 2 * inputs[before] > 0
    # The request fee's minimum makes up for what small requests pay less, and so did the double.
    rest = [line for line in after.lines if line.component not in ("input", "minimum")]
    assert rest == [line for line in before.lines if line.component not in ("input", "minimum")]
    dearer = look(golden, "ten_berlin", "2026-10", changed(review=None))
    assert total(dearer, "review") == 0
    # A rejection gives back what the output would have cost.
    rejected = look(golden, "ten_berlin", "2026-10", FREE)
    assert total(rejected, "adjustment") == 0
    assert total(before, "adjustment") < 0


def total(found: Preview, component: str) -> int:
    return sum(line.amount_nano for line in found.lines if line.component == component)


def test_usage_whose_summaries_are_gone_is_refused(golden: Month) -> None:
    with transaction(golden.database) as connection:
        unguard(connection, "request_summaries")
        connection.execute(
            update(request_summaries)
            .where(request_summaries.c.request_id == "req_b2")
            .values(body="")
        )
    with pytest.raises(UsageGone, match="1 requests of 2026-10"):
        look(golden, "ten_berlin", "2026-10", TERMS)
    assert look(golden, "ten_york", "2026-10", TERMS).requests == 2


def test_a_draft_in_another_currency_is_refused(golden: Month) -> None:
    with pytest.raises(TariffConflict, match="EUR"):
        look(golden, "ten_york", "2026-10", changed(currency="EUR"))
