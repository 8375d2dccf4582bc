from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from api_cases import NOW_US, House, make_house
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, func, select

from api import rates
from api.errors import RateLimited
from api.rates import MINUTE_US, Allowance
from api.roles import Role
from api.tables import rate_windows
from metering.database import snapshot, transaction


def count(database: Engine, key_id: str, limit: int, now_us: int) -> Allowance:
    with transaction(database) as connection:
        return rates.count(connection, key_id, limit, now_us)


@pytest.fixture
def key_id(sqlite_database: Engine) -> str:
    return make_house(sqlite_database).key_ids[Role.DEVELOPER]


def test_a_key_may_ask_up_to_its_limit_and_no_further(sqlite_database: Engine, key_id: str) -> None:
    left = [count(sqlite_database, key_id, 3, NOW_US + 1).remaining for _ in range(3)]
    assert left == [2, 1, 0]
    with pytest.raises(RateLimited) as caught:
        count(sqlite_database, key_id, 3, NOW_US + 1)
    assert caught.value.limit == 3
    assert caught.value.retry_after_s > 0


def test_keys_are_counted_apart(sqlite_database: Engine, key_id: str) -> None:
    other: House = make_house(sqlite_database, "Umbrella")
    count(sqlite_database, key_id, 1, NOW_US)
    assert count(sqlite_database, other.key_ids[Role.OWNER], 1, NOW_US).remaining == 0


def test_the_last_minute_weighs_less_as_it_recedes(sqlite_database: Engine, key_id: str) -> None:
    """Given 60 requests of 60 in the minute before, one place comes free each second."""
    for _ in range(60):
        count(sqlite_database, key_id, 60, NOW_US + MINUTE_US - 1)
    with pytest.raises(RateLimited) as caught:
        count(sqlite_database, key_id, 60, NOW_US + MINUTE_US)
    assert caught.value.retry_after_s == 1
    assert count(sqlite_database, key_id, 60, NOW_US + MINUTE_US + 1_000_000).remaining == 0
    with pytest.raises(RateLimited):
        count(sqlite_database, key_id, 60, NOW_US + MINUTE_US + 1_999_999)
    half_past = NOW_US + MINUTE_US + MINUTE_US // 2
    assert count(sqlite_database, key_id, 60, half_past).remaining == 28


def test_a_request_that_is_refused_counts_nothing(sqlite_database: Engine, key_id: str) -> None:
    count(sqlite_database, key_id, 1, NOW_US)
    for _ in range(5):
        with pytest.raises(RateLimited):
            count(sqlite_database, key_id, 1, NOW_US)
    assert count(sqlite_database, key_id, 2, NOW_US).remaining == 0


def test_a_transaction_that_is_rolled_back_was_no_request(
    sqlite_database: Engine, key_id: str
) -> None:
    with sqlite_database.connect() as connection, connection.begin() as undone:
        rates.count(connection, key_id, 1, NOW_US)
        undone.rollback()
    assert count(sqlite_database, key_id, 1, NOW_US).remaining == 0


def test_old_minutes_are_forgotten(sqlite_database: Engine, key_id: str) -> None:
    for minute in range(10):
        count(sqlite_database, key_id, 5, NOW_US + minute * MINUTE_US)
    with snapshot(sqlite_database) as connection:
        assert connection.scalar(select(func.count()).select_from(rate_windows)) == 2


def test_waiting_as_told_is_enough_and_a_second_less_is_not(
    sqlite_database: Engine, key_id: str
) -> None:
    @given(
        limit=st.integers(1, 9),
        moments=st.lists(st.integers(0, 2 * MINUTE_US - 1), min_size=1, max_size=25),
        started=st.integers(0, 10**6),
    )
    def check(limit: int, moments: list[int], started: int) -> None:
        with sqlite_database.connect() as raw, raw.begin() as rolled_back:
            refused_us = None
            for moment in sorted(moments):
                now_us = NOW_US + started * MINUTE_US + moment
                try:
                    rates.count(raw, key_id, limit, now_us)
                except RateLimited as error:
                    refused_us, wait_s = now_us, error.retry_after_s
            if refused_us is not None and refused_us == now_us:
                with raw.begin_nested() as trial:
                    if wait_s > 1:
                        with pytest.raises(RateLimited):
                            rates.count(raw, key_id, limit, now_us + (wait_s - 1) * 1_000_000)
                    rates.count(raw, key_id, limit, now_us + wait_s * 1_000_000)
                    trial.rollback()
            rolled_back.rollback()

    check()


def test_parallel_requests_never_pass_the_limit_together(database: Engine) -> None:
    key_id = make_house(database).key_ids[Role.DEVELOPER]

    def ask(_: int) -> bool:
        try:
            count(database, key_id, 5, NOW_US)
        except RateLimited:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(24))) == 5


def test_headers_say_what_is_left() -> None:
    assert Allowance(limit=60, remaining=12, reset_s=34).headers == {
        "RateLimit-Policy": '"requests";q=60;w=60',
        "RateLimit": '"requests";r=12;t=34',
    }
