"""Limits on requests, tokens, joules and concurrency, right across processes."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from api_cases import NOW_US, HeldClock, House, make_house
from api_door import Door
from sqlalchemy import Engine, func, insert, select, update

from api import keys, limits, projects, tenants
from api.errors import Conflict, InvalidParameter, RateLimited, TenantSuspended
from api.inference.idempotency import IdempotencyKey
from api.limits import Limits
from api.roles import Role
from api.tables import rate_windows
from billing import catalogue
from billing.ledger import credits
from metering.database import snapshot, transaction
from metering.queries import request
from metering.tables import requests


@pytest.fixture
def house(database: Engine, held_clock: HeldClock) -> House:
    house = make_house(database)
    with transaction(database) as connection:
        catalogue.install_shipped(connection)
        catalogue.assign(connection, house.tenant_id, "token", NOW_US)
        credits.grant(connection, house.tenant_id, 10**12, "first")
    return house


@pytest.fixture
def door(database: Engine, house: House) -> Door:
    return Door(database, house)


def put(door: Door, subject: str = limits.TENANT, **values: int) -> None:
    with transaction(door.database) as connection:
        limits.put(connection, door.house.tenant_id, Limits(subject, **values))


def test_parallel_requests_never_pass_a_concurrency_limit_together(door: Door) -> None:
    put(door, concurrency=2)
    start = threading.Barrier(5)

    def attempt(_: int) -> str | None:
        start.wait()
        try:
            return door.admit()
        except RateLimited:
            return None

    with ThreadPoolExecutor(5) as pool:
        admitted = [found for found in pool.map(attempt, range(5)) if found]
    assert len(admitted) == 2
    door.end(admitted[0], NOW_US)  # one that ended makes room for one
    door.admit()
    with pytest.raises(RateLimited):
        door.admit()


def test_a_keys_limit_leaves_the_other_keys_alone(door: Door) -> None:
    put(door, door.house.key_ids[Role.DEVELOPER], concurrency=1)
    door.admit()
    with pytest.raises(RateLimited):
        door.admit()
    door.admit(role=Role.OWNER)


def test_a_rotated_key_and_its_successors_are_under_one_limit(
    door: Door, held_clock: HeldClock
) -> None:
    """Given a limit put before a rotation, none of it comes anew with the successors."""
    first = door.house.key_ids[Role.DEVELOPER]
    put(door, first, requests_per_minute=3)
    ids = [first]
    for _ in range(2):
        door.admit(key_id=ids[-1])
        with transaction(door.database) as connection:
            ids.append(keys.rotate(connection, ids[-1], overlap_s=60).key.id)
    door.admit(key_id=ids[-1])
    for key_id in ids:
        with pytest.raises(RateLimited):
            door.admit(key_id=key_id)
    with transaction(door.database) as connection:
        tenant_id = door.house.tenant_id
        assert limits.listing(connection, tenant_id) == [Limits(ids[-1], requests_per_minute=3)]
        # Whichever of its keys is named: there is one limit.
        assert limits.put(connection, tenant_id, Limits(ids[1], concurrency=3)).subject == ids[-1]
        assert limits.listing(connection, tenant_id) == [Limits(ids[-1], concurrency=3)]
    for key_id in ids:
        with pytest.raises(RateLimited):
            door.admit(key_id=key_id)
    door.admit(role=Role.OWNER)


def test_a_limit_kept_under_a_successor_binds_its_lineage_until_it_is_replaced(
    door: Door,
) -> None:
    """As a limit may be that was put before lineages were kept."""
    first = door.house.key_ids[Role.DEVELOPER]
    with transaction(door.database) as connection:
        second = keys.rotate(connection, first, overlap_s=60).key.id
        row = {"tenant_id": door.house.tenant_id, "subject": second, "changed_at_us": 0}
        connection.execute(insert(limits.limits).values(**row, concurrency=1))
    door.admit(key_id=first)
    for key_id in (first, second):
        with pytest.raises(RateLimited):
            door.admit(key_id=key_id)
    put(door, first, concurrency=2)
    door.admit(key_id=second)
    with pytest.raises(RateLimited):
        door.admit(key_id=first)


def test_a_rotation_gives_no_second_share_of_the_gateways_rate(door: Door) -> None:
    door.admission = replace(door.admission, requests_per_minute=2)
    first = door.house.key_ids[Role.DEVELOPER]
    door.admit(key_id=first)
    with transaction(door.database) as connection:
        second = keys.rotate(connection, first, overlap_s=60).key.id
    door.admit(key_id=second)
    for key_id in (first, second):
        with pytest.raises(RateLimited):
            door.admit(key_id=key_id)


def test_a_minutes_requests_are_those_of_the_last_sixty_seconds(
    door: Door, held_clock: HeldClock
) -> None:
    put(door, requests_per_minute=2)
    door.admit()
    held_clock.advance(30)
    door.admit()
    with pytest.raises(RateLimited) as refusal:
        door.admit()
    assert refusal.value.retry_after_s == 30
    held_clock.advance(30)
    door.admit()
    with pytest.raises(RateLimited):
        door.admit()


def test_live_requests_count_with_all_they_may_write_and_ended_ones_with_what_they_did(
    door: Door, held_clock: HeldClock
) -> None:
    put(door, tokens_per_minute=100)
    first = door.admit(max_tokens=60)  # 80 with its prompt
    with pytest.raises(RateLimited) as refusal:
        door.admit(max_tokens=10)
    assert (refusal.value.unit, refusal.value.limit) == ("tokens", 100)
    door.end(first, NOW_US)  # 30 in all
    door.admit(max_tokens=50)
    held_clock.advance(61)
    with pytest.raises(RateLimited):
        door.admit(max_tokens=30)
    with pytest.raises(InvalidParameter):  # no minute would ever let it through
        door.admit(max_tokens=81)


def test_joules_are_limited_as_they_are_shown(door: Door) -> None:
    """A limit that saw more than the receipts do would tell of others in the batch."""
    put(door, joules_per_minute=1)
    for joules in (0.999_999, 0.099_999, 0.199_999):  # 0.9, 0.0 and 0.1 J on the receipts
        door.end(door.admit(), NOW_US, joules=joules)
    with pytest.raises(RateLimited):
        door.admit()


def test_a_clock_that_was_set_back_refuses_nobody_until_it_has_caught_up(
    door: Door, held_clock: HeldClock
) -> None:
    put(door, requests_per_minute=1, joules_per_minute=1, tokens_per_minute=100)
    held_clock.advance(7200)
    door.end(door.admit(), NOW_US + 7200 * 10**6, joules=60)
    held_clock.advance(-3600)
    door.admit()


def test_joules_make_the_next_request_wait(door: Door, held_clock: HeldClock) -> None:
    put(door, joules_per_minute=50)
    door.end(door.admit(), NOW_US, joules=60)
    held_clock.advance(20)
    with pytest.raises(RateLimited) as refusal:
        door.admit()
    assert (refusal.value.unit, refusal.value.retry_after_s) == ("joules", 40)
    held_clock.advance(40)
    door.admit()


def test_what_was_refused_was_never_a_request(door: Door) -> None:
    put(door, requests_per_minute=1)
    door.admit()
    for _ in range(3):
        with pytest.raises(RateLimited):
            door.admit()
    with snapshot(door.database) as connection:
        assert connection.execute(requests.select()).all()[1:] == []


def test_a_keys_project_end_user_and_tags_stay_with_the_request(door: Door) -> None:
    with transaction(door.database) as connection:
        project = projects.create(connection, door.house.tenant_id, "search")
        key_id = door.house.key_ids[Role.DEVELOPER]
        projects.put_key(connection, door.house.tenant_id, project.id, key_id)
    request_id = door.admit()
    with snapshot(door.database) as connection:
        row = request(connection, door.house.tenant_id, request_id)
    assert row is not None
    found: Any = (row.project_id, row.end_user, row.tags)
    assert found == (project.id, "ann", {"team": "red"})


@pytest.mark.parametrize(
    ("limit", "parameter"),
    [
        ({"concurrency": 3}, "n"),
        ({"requests_per_minute": 3}, "n"),
        ({"tokens_per_minute": 50}, "max_tokens"),
    ],
)
@pytest.mark.parametrize("of_key", [False, True])
def test_an_order_that_no_minute_admits_is_told_so_and_one_that_just_fits_passes(
    door: Door, limit: dict[str, int], parameter: str, of_key: bool
) -> None:
    """Given limits of three choices: the prompt's 20 tokens, and 10 for each."""
    put(door, door.house.key_ids[Role.DEVELOPER] if of_key else limits.TENANT, **limit)
    with pytest.raises(InvalidParameter) as refusal:
        door.admit(choices=4)
    assert refusal.value.parameter == parameter
    with snapshot(door.database) as connection:
        assert connection.scalar(select(func.count()).select_from(requests)) == 0
        assert connection.scalar(select(func.count()).select_from(rate_windows)) == 0
    door.admit(choices=3)
    with pytest.raises(RateLimited):
        door.admit(choices=1)


def test_more_choices_than_a_keys_rate_are_no_matter_of_waiting(door: Door) -> None:
    door.admission = replace(door.admission, requests_per_minute=3)
    with pytest.raises(InvalidParameter, match="3 a minute") as refusal:
        door.admit(choices=4)
    assert refusal.value.parameter == "n"
    door.admit(choices=3)
    with pytest.raises(RateLimited):
        door.admit(choices=1)


def test_lifting_a_limit_lifts_it(door: Door) -> None:
    put(door, concurrency=1)
    door.admit()
    put(door)
    door.admit()
    with transaction(door.database) as connection:
        connection.execute(update(requests).values(status="failed"))


def test_an_erased_answer_is_not_replayed_as_an_empty_one(door: Door) -> None:
    key = IdempotencyKey("again", "0" * 64)
    request_id = door.admit(key=key)
    assert door.admit(key=key) == request_id
    door.end(request_id, NOW_US)
    with transaction(door.database) as connection:
        connection.execute(update(requests).values(prompt=None, output=None))
    with pytest.raises(Conflict):
        door.admit(key=key)


def test_a_suspended_tenant_is_let_in_again_only_when_it_is_taken_back(door: Door) -> None:
    for suspended in (True, False):
        with transaction(door.database) as connection:
            tenants.suspend(connection, door.house.tenant_id, suspended=suspended)
        if suspended:
            with pytest.raises(TenantSuspended):
                door.admit()
    door.admit()
