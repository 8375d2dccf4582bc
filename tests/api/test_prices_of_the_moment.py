"""What a request is priced with is decided under its tenant's lock, and so is when it starts.

Two connections meet at the lock: whoever came first has committed before the other goes on.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from api_cases import NOW_US, HeldClock
from api_door import BeforeTheLock, Door, furnished
from billing_cases import tariff
from sqlalchemy import Connection, Engine, select

from billing import catalogue, overrides
from billing.errors import InsufficientCredit
from billing.ledger import credits
from billing.ledger.balances import balance
from metering import clock
from metering.database import snapshot, transaction
from metering.tables import requests

Change = Callable[[Connection, str], int]  # lets a tenant's prices change now, and says when


def assigned(connection: Connection, tenant_id: str) -> int:
    """Another tariff."""
    from_us = catalogue.from_now(connection, tenant_id)
    catalogue.assign(connection, tenant_id, "semantic", from_us)
    return from_us


def overridden(connection: Connection, tenant_id: str) -> int:
    """Prices of its own."""
    changes = {"input": {"per_million": "7"}}
    return overrides.override(connection, tenant_id, changes, None).effective_from_us


def published(connection: Connection, _tenant_id: str) -> int:
    """The next version of what it is on."""
    return catalogue.publish(connection, tariff(input={"per_million": "7"})).effective_from_us


changes = pytest.mark.parametrize("change", [assigned, overridden, published])


@pytest.fixture
def ticking_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock is a microsecond later."""
    moments = itertools.count(NOW_US)
    monkeypatch.setattr(clock, "now_us", lambda: next(moments))


def pinned(database: Engine, request_id: str) -> tuple[int, str]:
    """When a request started, and the version of the tariff that it pays."""
    with snapshot(database) as connection:
        started_us, version_id = connection.execute(
            select(requests.c.started_at_us, requests.c.tariff_version_id).where(
                requests.c.id == request_id
            )
        ).one()
    return int(started_us), str(version_id)


def in_force(database: Engine, tenant_id: str, at_us: int) -> str:
    with snapshot(database) as connection:
        return catalogue.tariff_in_force(connection, tenant_id, at_us).id


@changes
def test_a_request_that_waited_for_a_change_of_prices_starts_under_the_new_ones(
    database: Engine,
    elsewhere: Engine,
    before_the_lock: BeforeTheLock,
    ticking_clock: None,
    change: Change,
) -> None:
    house = furnished(database)
    former = in_force(database, house.tenant_id, NOW_US)
    from_us: list[int] = []

    def change_elsewhere() -> None:
        with transaction(elsewhere) as connection:
            from_us.append(change(connection, house.tenant_id))

    before_the_lock(change_elsewhere)
    request_id = Door(database, house).admit()
    assert before_the_lock.is_passed
    started_us, version_id = pinned(database, request_id)
    assert started_us >= from_us[0]
    assert version_id == in_force(database, house.tenant_id, started_us) != former


@changes
def test_prices_that_change_from_now_do_so_after_whatever_was_admitted_meanwhile(
    database: Engine,
    elsewhere: Engine,
    before_the_lock: BeforeTheLock,
    ticking_clock: None,
    change: Change,
) -> None:
    house = furnished(database)
    admitted: list[str] = []
    before_the_lock(lambda: admitted.append(Door(elsewhere, house).admit()))
    with before_the_lock.transaction(database) as connection:
        from_us = change(connection, house.tenant_id)
    assert before_the_lock.is_passed
    started_us, version_id = pinned(database, admitted[0])
    assert started_us < from_us
    assert version_id == in_force(database, house.tenant_id, started_us)
    assert version_id != in_force(database, house.tenant_id, from_us)


@changes
def test_prices_that_change_from_now_wait_for_a_request_that_is_being_admitted(
    database: Engine,
    elsewhere: Engine,
    before_the_lock: BeforeTheLock,
    held_clock: HeldClock,
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
) -> None:
    """Both look at the clock in the same microsecond; the request was first."""
    house = furnished(database)
    find = catalogue.tariff_in_force
    waiting = threading.Event()

    def change_here() -> int:
        try:
            with before_the_lock.transaction(database) as connection:
                return change(connection, house.tenant_id)
        finally:
            waiting.set()  # it waited for nobody

    with ThreadPoolExecutor(1) as pool:
        changing = []

        def found(connection: Connection, tenant_id: str, at_us: int) -> Any:
            version = find(connection, tenant_id, at_us)
            if not changing:
                before_the_lock(waiting.set)
                changing.append(pool.submit(change_here))
                assert waiting.wait(30)
            return version

        monkeypatch.setattr(catalogue, "tariff_in_force", found)
        request_id = Door(elsewhere, house).admit()
        from_us = changing[0].result(30)
    started_us, version_id = pinned(database, request_id)
    assert (started_us, from_us) == (NOW_US, NOW_US + 1)
    assert version_id == in_force(database, house.tenant_id, started_us)
    assert version_id != in_force(database, house.tenant_id, from_us)


def test_choices_of_one_order_do_not_spend_the_same_credit(
    database: Engine, held_clock: HeldClock
) -> None:
    """The lock finds the credit once, and each hold leaves less of it."""
    rich = furnished(database)
    Door(database, rich).admit(choices=2)
    with snapshot(database) as connection:
        both_nano = balance(connection, rich.tenant_id).held_nano
    poor = furnished(database, both_nano - 1)
    with pytest.raises(InsufficientCredit):
        Door(database, poor).admit(choices=2)
    with transaction(database) as connection:
        assert balance(connection, poor.tenant_id).held_nano == 0
        credits.grant(connection, poor.tenant_id, 1, "second")
    Door(database, poor).admit(choices=2)
    with snapshot(database) as connection:
        left = balance(connection, poor.tenant_id)
    assert (left.available_nano, left.held_nano) == (0, both_nano)
