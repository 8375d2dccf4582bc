"""Charges by the hour: at every moment what the lines come to, in any zone, however they came."""

from __future__ import annotations

from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from billing_world import add_request, add_tenant, settlement
from databases import SqliteFiles, reopened
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from invoice_world import Month, at, priced
from sqlalchemy import Engine, event, insert, select, update
from sqlalchemy.exc import DBAPIError

from billing import charged_hours, queries
from billing.charged_tables import charged_hours as hours_table
from billing.charged_tables import hour_charges, hour_spending
from billing.invoices import checks, closing, drafting
from billing.tables import rated_lines, receipts
from metering import rollups
from metering.database import snapshot, transaction
from metering.local_days import day_of
from metering.tables import request_summaries

START_US = at("2026-03-28 00:00")
QUARTER_US = 15 * 60 * 10**6
ZONES = ("UTC", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe")
moments = st.integers(0, 4 * 72).map(lambda quarter: START_US + quarter * QUARTER_US)
lines = st.tuples(moments, st.sampled_from(["input", "output"]), st.sampled_from(["1", "2"]))


def test_days_and_months_are_what_the_lines_come_to_whatever_was_counted(
    sqlite_files: SqliteFiles,
) -> None:
    """given lines that come between counts, when any span is read, then it is their sum."""

    @settings(max_examples=25, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.one_of(lines, st.just("count")), max_size=14),
        moments,
        moments,
        st.sampled_from(ZONES),
    )
    def holds(steps: list[tuple[int, str, str] | str], one: int, other: int, zone: str) -> None:
        url = sqlite_files.create(tables=True)
        database = reopened(url)
        added = []
        with transaction(database) as connection:
            add_tenant(connection, pays=priced())
        for number, step in enumerate(steps):
            if isinstance(step, str):
                charged_hours.count_all(database, START_US + 10**13)
            else:
                add_line(database, number, *step)
                added.append((*step, number))
        start_us, end_us = min(one, other), max(one, other) + 1
        within = [line for line in added if start_us <= line[0] < end_us]
        with snapshot(database) as connection:
            found = charged_hours.daily(connection, "ten_1", start_us, end_us, ZoneInfo(zone))
            sums = charged_hours.sums(connection, "ten_1", start_us, end_us)
            assert list(charged_hours.check(connection)) == []
        days: Counter[tuple[object, str]] = Counter()
        amounts: Counter[str] = Counter()
        prices: dict[str, set[str]] = {}
        for at_us, component, price, number in within:
            days[day_of(at_us, ZoneInfo(zone)), component] += number + 1
            amounts[component] += number + 1
            prices.setdefault(component, set()).add(price)
        assert {(day, name): nano for (day, name, _), nano in found.items() if nano} == days
        assert {each.component: each.amount_nano for each in sums} == amounts
        for each in sums:
            (price, *more) = prices[each.component]
            assert each.unit_price == (None if more else price)
            assert each.quantity_millionths == 1_500_000 * sum(
                line[1] == each.component for line in within
            )
        database.dispose()
        sqlite_files.drop(url)

    holds()


def add_line(
    database: Engine, number: int, at_us: int, component: str, price: str, quantity: str = "1.5"
) -> None:
    with transaction(database) as connection:
        add_request(connection, f"req_{number}")
        charged_hours.touch(connection, "ten_1", at_us)
        connection.execute(
            insert(rated_lines).values(
                request_id=f"req_{number}",
                line=0,
                tenant_id="ten_1",
                tariff_version_id="test@1",
                component=component,
                detail="",
                quantity=quantity,
                unit="tokens",
                unit_price=price,
                amount_nano=number + 1,
                currency="USD",
                event_time_us=at_us,
            )
        )
        connection.execute(
            insert(request_summaries).values(
                dict.fromkeys(("input_tokens", "output_tokens", "blocks", "complete_units"), 0)
                | dict.fromkeys(("fragment_units", "accepted_tokens", "drafted_depth"), 0)
                | {
                    "request_id": f"req_{number}",
                    "tenant_id": "ten_1",
                    "status": "completed",
                    "energy_class": "unavailable",
                    "ended_at_us": at_us,
                    "body": "",
                }
            )
        )
        connection.execute(
            insert(receipts).values(
                request_id=f"req_{number}",
                tenant_id="ten_1",
                document="",
                sha256=str(number),
                kid="k",
                signature="",
                total_nano=number + 1,
                currency="USD",
                created_at_us=at_us,
            )
        )


def test_a_tenant_whose_hour_cannot_be_added_up_keeps_no_other_waiting(database: Engine) -> None:
    with transaction(database) as connection:
        for tenant_id in ("ten_0", "ten_1", "ten_2"):
            add_tenant(connection, tenant_id, pays=priced())
            charged_hours.touch(connection, tenant_id, START_US)
    for number in range(10):  # each is an int64 of millionths; their sum is none
        add_line(database, number, START_US, "input", "1", quantity="9" * 12)
    with pytest.raises(ExceptionGroup) as failed:
        charged_hours.count_all(database, START_US + 10**13)
    assert [isinstance(each, DBAPIError) for each in failed.value.exceptions] == [True]
    with snapshot(database) as connection:
        waiting = select(hours_table.c.tenant_id).where(hours_table.c.is_counted.is_(False))
        assert connection.scalars(waiting).all() == ["ten_1"]


def test_hours_to_count_are_found_without_sorting_those_that_wait(
    sqlite_database: Engine,
) -> None:
    """However many wait, the next tenant is found along an index."""
    plans: list[str] = []
    with snapshot(sqlite_database) as connection:

        def explain(_: object, __: object, statement: str, parameters: Any, *___: object) -> None:
            if not statement.startswith("EXPLAIN"):
                explained = connection.exec_driver_sql(
                    f"EXPLAIN QUERY PLAN {statement}", parameters
                )
                plans.extend(row[-1] for row in explained)

        event.listen(connection, "before_cursor_execute", explain)
        charged_hours.next_due(connection, START_US, "ten_1")
        rollups.next_marked(connection, "ten_1")
    assert [plan.partition("(")[0] for plan in plans] == [
        "SEARCH charged_hours USING COVERING INDEX ix_charged_hours_uncounted ",
        "SEARCH rollup_marks USING COVERING INDEX ix_rollup_marks_tenant ",
    ]


@pytest.fixture
def month(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    made = Month(database, settlement(tmp_path), monkeypatch)
    with transaction(database) as connection:
        made.settlement._signer.register(connection)
        add_tenant(connection, credit="1000", pays=priced(base={"model": "flat", "amount": "5"}))
    return made


def count_all(month: Month) -> int:
    return charged_hours.count_all(month.database, month.now_us)


def test_settling_touches_its_hour_and_a_preview_of_counted_hours_is_the_invoice(
    month: Month,
) -> None:
    first, second = at("2026-11-10 12:10"), at("2026-11-10 13:59")
    month.serve("req_1", ended_us=first)
    month.serve("req_2", ended_us=second, tokens=77)
    month.now_us = at("2026-11-10 14:00")
    assert count_all(month) == 1, "the second hour is only just over"
    month.now_us = at("2026-11-20 00:00")
    assert count_all(month) == 1
    month.serve("req_3", ended_us=first + 1, tokens=3)  # late, into a counted hour
    for is_counted_again in (False, True):
        if is_counted_again:
            assert count_all(month) == 1
        with snapshot(month.database) as connection:
            period = closing.period_of(connection, "ten_1", "2026-11")
            assert closing.preview(connection, "ten_1", "2026-11") == drafting.draft(
                connection, "ten_1", period
            )
            charges = queries.charges(connection, "ten_1", period.start_us, period.end_us)
            booked = sum(connection.scalars(select(rated_lines.c.amount_nano)))
        assert {charge.day for charge in charges} == {date(2026, 11, 10)}
        assert sum(charge.amount_nano for charge in charges) == booked


def test_a_count_that_is_wrong_is_found_and_made_anew(month: Month) -> None:
    month.serve("req_1", ended_us=at("2026-11-10 12:10"))
    month.now_us = at("2026-11-20 00:00")
    count_all(month)
    with transaction(month.database) as connection:
        connection.execute(update(hour_charges).values(amount_nano=1))
    checked = {each.check for each in checks.unbilled(month.database)}
    assert checked == {"charges counted by the hour = lines"}
    with transaction(month.database) as connection:
        for table in (hour_charges, hour_spending, hours_table):
            connection.execute(table.delete())
    assert {each.check for each in checks.unbilled(month.database)} == {
        "hours with charges are known"
    }
    with transaction(month.database) as connection:
        charged_hours.rebuild(connection)
    assert count_all(month) == 1
    assert list(checks.unbilled(month.database)) == []
