from __future__ import annotations

import pytest
from api_cases import HeldClock
from sqlalchemy import Engine

from api import tenants
from api.errors import InvalidParameter, NotFound
from api.tenants import Tenant
from metering.database import snapshot, transaction


def create(database: Engine, **options: object) -> Tenant:
    with transaction(database) as connection:
        return tenants.create(connection, **{"name": "Acme", **options})


def test_a_tenant_is_read_back_as_it_was_created(database: Engine, held_clock: HeldClock) -> None:
    tenant = create(database, currency="EUR", time_zone="Europe/Berlin", review_opt_in=True)
    assert tenant.created_at_us == held_clock.now_us
    with snapshot(database) as connection:
        assert tenants.require(connection, tenant.id) == tenant


@pytest.mark.parametrize(
    ("options", "parameter"),
    [
        ({"currency": "usd"}, "currency"),
        ({"currency": "DOLLAR"}, "currency"),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"time_zone": "../etc/passwd"}, "time_zone"),
        ({"time_zone": "/etc/localtime"}, "time_zone"),
        ({"time_zone": ""}, "time_zone"),
        ({"time_zone": "Europe"}, "time_zone"),
        ({"time_zone": "localtime"}, "time_zone"),  # whatever this machine was set to
        ({"time_zone": "Factory"}, "time_zone"),
        ({"time_zone": "posix/UTC"}, "time_zone"),
        ({"name": " "}, "name"),
        ({"review_delivery": "later"}, "review_delivery"),
    ],
)
def test_settings_that_mean_nothing_are_refused_by_name(
    sqlite_database: Engine, options: dict[str, str], parameter: str
) -> None:
    with pytest.raises(InvalidParameter) as caught:
        create(sqlite_database, **options)
    assert caught.value.parameter == parameter


def test_answers_may_be_held_until_they_are_reviewed(sqlite_database: Engine) -> None:
    tenant = create(sqlite_database, review_delivery="held")
    assert tenant.review_delivery == "held"
    with transaction(sqlite_database) as connection:
        assert tenants.change(connection, tenant.id, review_delivery="now").review_delivery == "now"
        with pytest.raises(InvalidParameter):
            tenants.change(connection, tenant.id, review_delivery="later")


def test_only_what_is_given_changes(sqlite_database: Engine) -> None:
    tenant = create(sqlite_database, review_opt_in=True)
    with transaction(sqlite_database) as connection:
        changed = tenants.change(connection, tenant.id, review_opt_in=False)
        assert tenants.change(connection, tenant.id) == changed
    assert changed.review_opt_in is False
    assert changed.name == tenant.name
    with transaction(sqlite_database) as connection, pytest.raises(NotFound):
        tenants.change(connection, "ten_nobody", name="x")


def test_a_suspended_tenant_exists_and_can_be_taken_back(sqlite_database: Engine) -> None:
    tenant = create(sqlite_database)
    with transaction(sqlite_database) as connection:
        tenants.suspend(connection, tenant.id)
        assert tenants.require(connection, tenant.id).suspended
        tenants.suspend(connection, tenant.id, suspended=False)
        assert tenants.require(connection, tenant.id) == tenant
        with pytest.raises(NotFound):
            tenants.suspend(connection, "ten_nobody")


def test_pages_of_tenants_do_not_overlap(sqlite_database: Engine, held_clock: HeldClock) -> None:
    created = [create(sqlite_database, name=f"t{number}").id for number in range(5)]
    seen: list[str] = []
    after = None
    with snapshot(sqlite_database) as connection:
        while page := tenants.listing(connection, limit=2, after=after):
            seen += [tenant.id for tenant in page]
            after = (page[-1].created_at_us, page[-1].id)
    assert sorted(seen) == sorted(created)
