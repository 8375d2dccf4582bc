"""Reported usage in money: owed at the price of its own time, never free, never forgotten."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from pathlib import Path

import pytest
from billing_cases import STARTED_US, summary, tariff
from billing_world import add_request, add_tenant, balances, books_balance, settlement
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from outside_reports import report
from sqlalchemy import Connection, Engine, delete, func, select, text, update

from billing import budgets, catalogue, outside
from billing.ledger import balances as tenant_balances
from billing.ledger.accounts import lock_tenant
from billing.queries import lines
from billing.reconciliation import reconcile
from billing.tables import tenant_tariffs
from metering import requests as usage
from metering import rollups
from metering.database import snapshot, transaction
from metering.ingest_tables import outside_usage
from metering.rollups import RollupRow
from metering.tables import request_summaries, requests

HOUR_US = 3600 * 10**6


def test_reported_usage_is_owed_once_and_reconciles(database: Engine, tmp_path: Path) -> None:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        settler._signer.register(connection)
        add_tenant(connection, credit="1")
        budgets.define(connection, "ten_1", limit_nano=6_000, period="ever", hard=True)
    for _ in range(2):
        report(database, 1, project_id="prj_1", end_user="ann", tags={"team": "red"})
        outside.settle_waiting(database, settler)
    report(database, 2, output_tokens=0, energy_joules=None)
    assert outside.settle_waiting(database, settler) == outside.Rated(1, 0)
    with snapshot(database) as connection:
        books_balance(connection)
        owed = 2 * 20 * 100 + 10 * 400
        assert balances(connection) == {
            "tenant_credit": 10**9,
            "accrued": -owed,
            "earnings": owed,
        }
        assert tenant_balances.balance(connection, "ten_1").receivable_nano == owed
        (standing,) = budgets.standings(connection, "ten_1", STARTED_US)
        assert standing.spent_nano == owed  # used is used, whatever the budget
        found = reconcile(connection)
        assert found.differences == ()
        rows = connection.execute(select(requests).order_by(requests.c.id)).all()
        assert {row.route for row in rows} == {"outside"}
        assert {row.project_id for row in rows} == {"prj_1", None}
        energy = connection.execute(
            select(request_summaries.c.energy_class, request_summaries.c.energy_uj)
        ).all()
        assert set(map(tuple, energy)) == {("reported", 2_500_000), ("unavailable", None)}


def test_what_has_no_price_waits_with_its_reason_and_is_charged_when_it_has_one(
    database: Engine, tmp_path: Path
) -> None:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        connection.execute(delete(tenant_tariffs))
    report(database, 1)
    assert outside.settle_waiting(database, settler) == outside.Rated(0, 1)
    with snapshot(database) as connection:
        assert outside.waiting(connection).unrated == 1
        assert balances(connection) == {}
        assert connection.scalar(select(func.count()).select_from(requests)) == 0
    with transaction(database) as connection:
        catalogue.assign(connection, "ten_1", tariff().name, 0)
    assert outside.settle_waiting(database, settler) == outside.Rated(1, 0)
    with snapshot(database) as connection:
        assert outside.waiting(connection).events == 0


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"project_id": "p" * 65}, "project_id"),  # as was taken in once
        ({"model": "m" * 201}, "model"),
        ({"parameters": {}}, "parameters"),
    ],
)
def test_an_event_that_nothing_can_be_made_of_keeps_none_waiting(
    database: Engine, tmp_path: Path, body: dict[str, object], reason: str
) -> None:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        settler._signer.register(connection)
        add_tenant(connection, credit="0")
    report(database, 1)
    with transaction(database) as connection:
        stored = json.loads(connection.scalar(select(outside_usage.c.body)) or "")
        stored["data"] |= body
        connection.execute(update(outside_usage).values(body=json.dumps(stored)))
    report(database, 2)
    assert outside.settle_waiting(database, settler) == outside.Rated(1, 1)
    with snapshot(database) as connection:
        (waiting,) = outside.unrated(connection, 10)
        assert (waiting.id, reason in waiting.reason) == ("event-1", True)
        books_balance(connection)


def test_a_tenant_whose_usage_cannot_be_settled_keeps_no_other_waiting(
    database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More events of the first tenant than are taken at a time, and one of another behind them."""
    monkeypatch.setattr(outside, "BATCH", 2)
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        settler._signer.register(connection)
        for tenant_id in ("ten_1", "ten_2"):
            add_tenant(connection, tenant_id, credit="0")
    for number in range(3):
        report(database, number)
    report(database, 3, tenant_id="ten_2")

    def broken(_connection: Connection, tenant_id: str, currency: str) -> int:
        if tenant_id == "ten_1":
            raise OverflowError("its books")
        return lock_tenant(_connection, tenant_id, currency)

    monkeypatch.setattr(outside, "lock_tenant", broken)
    for _ in range(2):
        with pytest.raises(ExceptionGroup) as failed:
            outside.settle_waiting(database, settler)
        assert "usage of ten_1" in failed.value.exceptions[0].__notes__
    with snapshot(database) as connection:
        assert connection.scalars(select(requests.c.tenant_id)).all() == ["ten_2"]
        assert outside.waiting(connection).unrated == 3
    monkeypatch.setattr(outside, "lock_tenant", lock_tenant)
    assert outside.settle_waiting(database, settler) == outside.Rated(2, 0)
    assert outside.settle_waiting(database, settler) == outside.Rated(1, 0)


def test_usage_that_got_its_price_is_charged_behind_more_without_one_than_a_round_tries(
    database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another tenant, and of the same one, whose tariff begins after its oldest events."""
    monkeypatch.setattr(outside, "BATCH", 2)
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        settler._signer.register(connection)
        for tenant_id in ("ten_1", "ten_2"):
            add_tenant(connection, tenant_id, credit="0")
        connection.execute(delete(tenant_tariffs))
    for number, at_us in enumerate([STARTED_US] * 3 + [STARTED_US + HOUR_US]):
        report(database, number, at_us)
    report(database, 4, tenant_id="ten_2")
    for _ in range(3):
        outside.settle_waiting(database, settler)
    with transaction(database) as connection:
        assert [each.id for each in outside.unrated(connection, 9)][:2] == ["event-0", "event-1"]
        catalogue.assign(connection, "ten_1", tariff().name, STARTED_US + HOUR_US)
        catalogue.assign(connection, "ten_2", tariff().name, 0)
    assert sum(outside.settle_waiting(database, settler).settled for _ in range(3)) == 2
    with snapshot(database) as connection:
        assert outside.waiting(connection).unrated == 3
        assert {each.tenant_id for each in outside.unrated(connection, 9)} == {"ten_1"}


def test_a_late_event_is_priced_as_of_its_own_time(database: Engine, tmp_path: Path) -> None:
    settler = settlement(tmp_path)
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        dearer = tariff(output={"per_million": "0.8"})
        catalogue.publish(connection, dearer, STARTED_US + HOUR_US)
    report(database, 1, STARTED_US + HOUR_US)
    report(database, 2, STARTED_US + HOUR_US - 1)
    outside.settle_waiting(database, settler)
    with snapshot(database) as connection:
        prices = set()
        for request_id in connection.scalars(select(requests.c.id)):
            (output,) = (x for x in lines(connection, request_id) if x.component == "output")
            prices.add(output.unit_price)
        assert prices == {"0.0000004", "0.0000008"}


_examples = itertools.count()


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    order=st.permutations([0, 3, 59, 61, 3599, 3600, 86_400, 3]), cuts=st.sets(st.integers(1, 7))
)
def test_rollups_are_the_same_in_any_order_and_as_made_anew(
    database: Engine, order: list[int], cuts: set[int]
) -> None:
    example = next(_examples)
    tenant_id = f"ten_{example}"
    day_us = 24 * HOUR_US
    base = STARTED_US // day_us * day_us
    with transaction(database) as connection:
        add_tenant(connection, tenant_id, credit="0")
    for place, seconds in enumerate(order):
        with transaction(database) as connection:
            at_us = base + seconds * 10**6
            end_a_request(connection, f"req_{example}_{place}", at_us, tenant_id)
            if place in cuts:
                rollups.refresh(connection, tenant_id)
    with transaction(database) as connection:
        rollups.refresh(connection, tenant_id)
        assert rollups.waiting(connection) == 0
        kept = everything(connection, tenant_id)
        rollups.rebuild(connection, tenant_id)
        assert everything(connection, tenant_id) == kept
    assert [row.requests for row in kept if row.width == "day"] == [7, 1]
    assert [row.requests for row in kept if row.width == "minute"] == [4, 1, 1, 1, 1]


def test_requests_that_end_at_once_wait_for_no_counter_of_all(postgres_database: Engine) -> None:
    """Not even those of one tenant in one minute: each only marks what is to be counted."""
    with transaction(postgres_database) as connection:
        add_tenant(connection)
    with transaction(postgres_database) as first:
        end_a_request(first, "req_1", STARTED_US)
        with transaction(postgres_database) as second:
            second.execute(text("SET LOCAL lock_timeout = '2s'"))  # then it is refused
            end_a_request(second, "req_2", STARTED_US)
    with transaction(postgres_database) as connection:
        rollups.refresh(connection, "ten_1")
        counted = [row for row in everything(connection, "ten_1") if row.width == "day"]
        assert [row.requests for row in counted] == [2]


def test_a_roll_up_is_bounded_and_a_crash_within_one_changes_nothing(
    database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollups, "MINUTES_MAX", 2)
    with transaction(database) as connection:
        add_tenant(connection)
        for minute in range(5):
            end_a_request(connection, f"req_{minute}", STARTED_US + minute * 60 * 10**6)
    with suppress(OSError), transaction(database) as connection:
        assert rollups.refresh(connection, "ten_1") == 2
        raise OSError
    with transaction(database) as connection:
        assert (rollups.waiting(connection), everything(connection, "ten_1")) == (5, [])
        assert [rollups.refresh(connection, "ten_1") for _ in range(4)] == [2, 2, 1, 0]
        kept = everything(connection, "ten_1")
        rollups.rebuild(connection, "ten_1")
        assert everything(connection, "ten_1") == kept


def end_a_request(
    connection: Connection, request_id: str, at_us: int, tenant_id: str = "ten_1"
) -> None:
    request = add_request(connection, request_id, tenant_id)
    final = summary(
        request_id=request.id,
        tenant_id=tenant_id,
        tariff_version_id=request.tariff_version_id,
        ended_at_us=at_us,
    )
    usage.finalise(connection, final, "text")


def everything(connection: Connection, tenant_id: str) -> list[RollupRow]:
    return [
        row
        for width in rollups.WIDTHS_US
        for row in rollups.read(connection, tenant_id, width, 0, 2**62)
    ]
