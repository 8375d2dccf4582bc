"""Budgets: exact under threads, right at the edges of local days, told once a threshold."""

from __future__ import annotations

import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest
from billing_cases import STARTED_US, summary
from billing_sweeps import expire_holds
from billing_world import FAR_US, add_request, add_tenant, books_balance
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, select, text, update
from sqlalchemy.exc import IntegrityError

from billing import budgets, lineages
from billing.budget_windows import Period, window_of
from billing.credit_checks import check
from billing.credit_tables import budget_windows, notices
from billing.errors import BudgetExhausted, InvalidBudget, UnknownBudget
from billing.gate import HoldGate
from billing.ledger import holds
from metering.database import snapshot, transaction
from metering.events import RequestSummary
from metering.protocols import Cover
from metering.tables import tenants

THREADS = 6
HOUR_US = 3600 * 10**6
HOLD = 20 * 100 + 10 * 400  # of the factory's tariff: 20 tokens in, 10 out


def us(moment: str, zone: str = "UTC") -> int:
    return int(datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 10**6


def admit(connection: Connection, request_id: str, **fields: object) -> None:
    request = add_request(connection, request_id, **fields)
    HoldGate(lookahead_tokens=10).admit(connection, request, expires_at_us=FAR_US)


@pytest.mark.parametrize("affordable", [0, 3])
def test_parallel_admissions_against_a_hard_budget_for_k_admit_exactly_k(
    database: Engine, affordable: int
) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        budgets.define(
            connection,
            "ten_1",
            limit_nano=affordable * HOLD + HOLD // 2,
            period="ever",
            hard=True,
        )
    start = threading.Barrier(THREADS)

    def attempt(number: int) -> bool:
        start.wait()
        try:
            with transaction(database) as connection:
                admit(connection, f"req_{number}")
        except BudgetExhausted:
            return False
        return True

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(attempt, range(THREADS))) == affordable
    with snapshot(database) as connection:
        (standing,) = budgets.standings(connection, "ten_1", STARTED_US)
        assert (standing.reserved_nano, standing.spent_nano) == (affordable * HOLD, 0)
        books_balance(connection)
        assert list(check(connection)) == []


def test_a_storm_of_cancellations_leaves_nothing_held(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        budgets.define(connection, "ten_1", limit_nano=HOLD * 3, period="day", hard=True)
    for number in range(9):
        with transaction(database) as connection:
            admit(connection, f"req_{number}")
        with transaction(database) as connection:
            if number % 2:
                holds.void(connection, f"req_{number}")
            else:
                expire_holds(connection, FAR_US)
    with snapshot(database) as connection:
        (standing,) = budgets.standings(connection, "ten_1", STARTED_US)
        assert (standing.reserved_nano, standing.spent_nano) == (0, 0)
        assert list(check(connection)) == []


def test_settling_turns_the_reserved_into_the_spent_and_frees_the_rest(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        budgets.define(connection, "ten_1", limit_nano=HOLD, period="day", hard=True)
        admit(connection, "req_1")
        with pytest.raises(BudgetExhausted) as refusal:
            admit(connection, "req_2")
        # A refusal says what is spent, what is held, and until when.
        assert (refusal.value.held_nano, refusal.value.spent_nano) == (HOLD, 0)
        for _ in range(2):
            holds.settle(
                connection, "req_1", charge_nano=1_000, fee_nano=0, event_time_us=STARTED_US
            )
        (standing,) = budgets.standings(connection, "ten_1", STARTED_US)
        assert (standing.reserved_nano, standing.spent_nano) == (0, 1_000)


def test_no_budget_is_no_limit_and_a_soft_one_refuses_nothing(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        admit(connection, "req_1")
        budgets.define(connection, "ten_1", limit_nano=0, period="day", hard=False)
        admit(connection, "req_2")


def test_a_test_key_meets_no_budget_and_costs_nothing(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="0")
        budgets.define(connection, "ten_1", limit_nano=0, period="day", hard=True)
        admit(connection, "req_1", test_mode=True)
        with pytest.raises(BudgetExhausted):
            budgets.check(budgets.applying(connection, "req_1"), 1)
        books_balance(connection)


def test_a_budget_of_a_key_or_project_counts_that_alone(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        for scope, name in (("key", "key_1"), ("project", "prj_1")):
            budgets.define(
                connection,
                "ten_1",
                limit_nano=HOLD,
                period="ever",
                hard=True,
                scope=scope,
                scope_id=name,
            )
        admit(connection, "req_1", key_id="key_2")
        admit(connection, "req_2", key_id="key_1")
        admit(connection, "req_3", key_id="key_3", project_id="prj_1")
        with pytest.raises(BudgetExhausted):
            admit(connection, "req_4", key_id="key_1")
        with pytest.raises(BudgetExhausted):
            admit(connection, "req_5", key_id="key_9", project_id="prj_1")


@pytest.mark.parametrize("defined_for", ["key_1", "key_2"])
def test_a_rotated_key_and_its_successors_spend_from_one_budget(
    database: Engine, defined_for: str
) -> None:
    """However often a key is rotated, and of whichever of its keys the budget was defined."""
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        lineages.succeed(connection, "key_1", "key_2")
        budget = budgets.define(
            connection,
            "ten_1",
            limit_nano=3 * HOLD,
            period="ever",
            hard=True,
            scope="key",
            scope_id=defined_for,
            alerts=[100],
        )
        lineages.succeed(connection, "key_2", "key_3")
        for key_id in ("key_1", "key_2", "key_3"):
            admit(connection, f"req_{key_id}", key_id=key_id)
        for key_id in ("key_1", "key_2", "key_3"):
            with pytest.raises(BudgetExhausted) as refusal, connection.begin_nested():
                admit(connection, f"req_{key_id}_more", key_id=key_id)
            assert refusal.value.budget_id == budget.id
        admit(connection, "req_other", key_id="key_4")
        (shown,) = budgets.standings(connection, "ten_1", STARTED_US)
        assert (shown.budget.scope_id, shown.reserved_nano) == ("key_3", 3 * HOLD)
        assert budgets.standing(connection, "ten_1", budget.id, STARTED_US) == shown
        for key_id in ("key_1", "key_2", "key_3"):
            budgets.settle(connection, f"req_{key_id}", HOLD)
        (told,) = connection.scalars(select(notices.c.data))
        assert json.loads(told)["scope_id"] == "key_3"


def test_an_answer_is_cut_where_its_budget_ends_as_by_its_own_tenant(database: Engine) -> None:
    gate = HoldGate(lookahead_tokens=10)
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        budgets.define(connection, "ten_1", limit_nano=HOLD + 400, period="ever", hard=True)
        admit(connection, "req_1")
        final = summary()
        assert gate.cover(connection, final) is Cover.COVERED
    with transaction(database) as connection:

        def longer(tokens: int) -> RequestSummary:
            unit = msgspec.structs.replace(final.units[0], tokens=tokens)
            return msgspec.structs.replace(
                final, output_tokens=tokens, units=(unit,), unattached_tokens=0
            )

        assert gate.cover(connection, longer(11)) is Cover.COVERED
        assert gate.cover(connection, longer(12)) is Cover.MAX_COST


def test_thresholds_are_told_once_a_window(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        budgets.define(
            connection, "ten_1", limit_nano=10_000, period="day", hard=False, alerts=[50, 80, 100]
        )
        for number, nano in enumerate([4_000, 2_000, 100, 3_900]):
            admit(connection, f"req_{number}")
            holds.settle(
                connection,
                f"req_{number}",
                charge_nano=nano,
                fee_nano=0,
                event_time_us=STARTED_US,
            )
        told = [
            json.loads(data)["threshold_pct"]
            for data in connection.scalars(
                select(notices.c.data)
                .where(notices.c.type == "budget.threshold_reached")
                .order_by(notices.c.created_at_us)
            )
        ]
        assert sorted(told) == [50, 100]


@pytest.mark.parametrize(
    ("period", "zone", "moment", "start", "end"),
    [
        # New York: the day on which the clocks go forward has 23 hours, back 25.
        ("day", "America/New_York", "2026-03-08T12:00", "2026-03-08T00:00", "2026-03-09T00:00"),
        ("day", "America/New_York", "2026-11-01T23:59", "2026-11-01T00:00", "2026-11-02T00:00"),
        ("week", "Europe/Berlin", "2026-10-25T23:30", "2026-10-19T00:00", "2026-10-26T00:00"),
        ("month", "Asia/Kathmandu", "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
    ],
)
def test_a_window_is_the_tenants_own_day_week_or_month(
    period: str, zone: str, moment: str, start: str, end: str
) -> None:
    window = window_of(Period(period), us(moment, zone), ZoneInfo(zone))
    assert (window.start_us, window.end_us) == (us(start, zone), us(end, zone))


@given(
    period=st.sampled_from([Period.DAY, Period.WEEK, Period.MONTH]),
    zone=st.sampled_from(
        ["UTC", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo", "Pacific/Apia"]
    ),
    moment=st.integers(us("2000-01-01") // 10**6, us("2037-01-01") // 10**6).map(
        lambda seconds: seconds * 10**6
    ),
)
def test_every_moment_is_in_one_window_and_windows_meet(
    period: Period, zone: str, moment: int
) -> None:
    window = window_of(period, moment, ZoneInfo(zone))
    assert window.end_us is not None
    assert window.start_us <= moment < window.end_us
    assert window_of(period, window.end_us, ZoneInfo(zone)).start_us == window.end_us


def test_a_budget_resets_at_local_midnight_not_at_utcs(database: Engine) -> None:
    zone = "America/Los_Angeles"
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        connection.execute(update(tenants).values(time_zone=zone))
        budgets.define(connection, "ten_1", limit_nano=HOLD, period="day", hard=True)
        admit(connection, "req_1", started_at_us=us("2026-11-01T23:59", zone))
        with pytest.raises(BudgetExhausted) as refusal:
            admit(connection, "req_2", started_at_us=us("2026-11-01T00:00", zone))
        assert refusal.value.resets_at_us == us("2026-11-02T00:00", zone)
        admit(connection, "req_3", started_at_us=us("2026-11-02T00:00", zone))
        # What is read goes by the same days, where nothing was spent yet.
        for at, day in (("2026-11-03T15:59", 3), ("2026-11-03T16:00", 3), ("2026-11-04T00:00", 4)):
            (standing,) = budgets.standings(connection, "ten_1", us(at, zone))
            assert standing == budgets.standing(
                connection, "ten_1", standing.budget.id, us(at, zone)
            )
            assert standing.window.start_us == us(f"2026-11-0{day}T00:00", zone)


@pytest.mark.parametrize("period", ["day", "week", "month"])
def test_a_tenant_that_moves_gets_no_limit_anew_until_the_window_it_spent_in_ends(
    database: Engine, period: str
) -> None:
    at_us = us("2026-11-15T12:00")  # a Sunday
    ends = {"day": "2026-11-16", "week": "2026-11-16", "month": "2026-12-01"}
    end_us = us(f"{ends[period]}T00:00")

    def admitted(started_at_us: int) -> str | int:
        try:
            with transaction(database) as connection:
                admit(connection, f"req_{started_at_us}", started_at_us=started_at_us)
        except BudgetExhausted as refusal:
            return refusal.resets_at_us or 0
        return "admitted"

    def moves(zone: str) -> None:
        with transaction(database) as connection:
            connection.execute(update(tenants).values(time_zone=zone))

    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        budgets.define(connection, "ten_1", limit_nano=HOLD, period=period, hard=True)
    assert admitted(at_us) == "admitted"
    for later, zone in enumerate(["America/New_York", "Europe/Berlin", "Asia/Tokyo"], start=1):
        moves(zone)
        assert admitted(at_us + later) == end_us
    # Five hours of what is the same day, week and month in New York join the next one there.
    moves("America/New_York")
    assert admitted(end_us - 1) == end_us
    assert admitted(end_us) == "admitted"
    following = {"day": "2026-11-17", "week": "2026-11-23", "month": "2027-01-01"}
    following_us = us(f"{following[period]}T00:00", "America/New_York")
    assert admitted(end_us + 6 * HOUR_US) == following_us
    with snapshot(database) as connection:
        (standing,) = budgets.standings(connection, "ten_1", end_us + 6 * HOUR_US)
        assert (standing.window.start_us, standing.window.end_us) == (end_us, following_us)
        assert standing.reserved_nano == HOLD
        assert list(check(connection)) == []


_examples = itertools.count()
ZONES = ["UTC", "Asia/Tokyo", "America/New_York", "Pacific/Kiritimati", "Pacific/Pago_Pago"]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.tuples(st.integers(0, 40), st.sampled_from(ZONES)), min_size=2, max_size=12)
)
def test_however_a_tenant_moves_no_moment_is_in_two_windows_and_none_lets_through_more(
    database: Engine, steps: list[tuple[int, str]]
) -> None:
    tenant_id = f"ten_{next(_examples)}"
    at_us, refused = us("2026-10-24T12:00"), 0
    with transaction(database) as connection:
        add_tenant(connection, tenant_id, credit="1")
        budget = budgets.define(connection, tenant_id, limit_nano=HOLD, period="day", hard=True)
    for number, (hours, zone) in enumerate(steps):
        at_us += hours * HOUR_US
        with transaction(database) as connection:
            connection.execute(
                update(tenants).where(tenants.c.id == tenant_id).values(time_zone=zone)
            )
            (before,) = budgets.standings(connection, tenant_id, at_us)
        assert at_us in before.window
        try:
            with transaction(database) as connection:
                request_id = f"req_{tenant_id}_{number}"
                admit(connection, request_id, tenant_id=tenant_id, started_at_us=at_us)
        except BudgetExhausted:
            refused += 1
    with snapshot(database) as connection:
        stored = connection.execute(
            select(budget_windows)
            .where(budget_windows.c.budget_id == budget.id)
            .order_by(budget_windows.c.start_us)
        ).all()
    assert [row.reserved_nano for row in stored] == [HOLD] * (len(steps) - refused)
    for row, following in itertools.pairwise(stored):
        assert row.end_us <= following.start_us
    # Half a day of 23 hours, and a day of 25 with a little less than half a day before it.
    assert all(11.5 <= (row.end_us - row.start_us) / HOUR_US < 37.5 for row in stored)


@pytest.mark.parametrize("end", ["settled", "refunded", "expired"])
def test_a_tenant_that_moves_meanwhile_keeps_the_window_its_request_began_in(
    database: Engine, end: str
) -> None:
    with transaction(database) as connection:
        add_tenant(connection, credit="1")
        budget = budgets.define(connection, "ten_1", limit_nano=3 * HOLD, period="day", hard=True)
        admit(connection, "req_1")
        if end == "refunded":
            holds.settle(connection, "req_1", charge_nano=9, fee_nano=0, event_time_us=STARTED_US)
        connection.execute(update(tenants).values(time_zone="Pacific/Kiritimati"))
    with transaction(database) as connection:
        if end == "settled":
            holds.extend(connection, "req_1", 2 * HOLD)
            holds.settle(connection, "req_1", charge_nano=9, fee_nano=0, event_time_us=STARTED_US)
        elif end == "refunded":
            budgets.give_back(connection, "req_1", 4)
        else:
            expire_holds(connection, FAR_US)
        assert list(check(connection)) == []
        (window,) = connection.execute(select(budget_windows)).all()
        assert window.budget_id == budget.id
        spent = {"settled": 9, "refunded": 5, "expired": 0}[end]
        assert (window.reserved_nano, window.spent_nano) == (0, spent)


@pytest.mark.parametrize(
    "terms",
    [
        {"period": "fortnight"},
        {"limit_nano": -1},
        {"scope": "key"},
        {"alerts": [80, 50]},
        {"alerts": [0]},
        {"alerts": [101]},
    ],
)
def test_a_budget_that_contradicts_itself_is_refused(
    sqlite_database: Engine, terms: dict[str, object]
) -> None:
    with transaction(sqlite_database) as connection:
        add_tenant(connection)
        with pytest.raises(InvalidBudget):
            budgets.define(
                connection, "ten_1", **({"limit_nano": 1, "period": "day", "hard": True} | terms)
            )


def test_terms_never_change_and_closing_is_the_tenants_own(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection)
        budget = budgets.define(connection, "ten_1", limit_nano=0, period="day", hard=True)
        budgets.close(connection, "ten_2", budget.id)
        with pytest.raises(BudgetExhausted):
            admit(connection, "req_1")
        with pytest.raises(UnknownBudget):
            budgets.standing(connection, "ten_2", budget.id, STARTED_US)
        budgets.close(connection, "ten_1", budget.id)
        assert budgets.standings(connection, "ten_1", STARTED_US) == []
    with pytest.raises(IntegrityError), transaction(database) as connection:
        connection.execute(text("UPDATE budgets SET limit_nano = 1"))
