"""Statements on the driver's own cursor: they find and change what SQLAlchemy's would."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, Engine, bindparam, insert, select, update
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoResultFound

from billing.rows import insert_once
from metering.database import snapshot, transaction
from metering.prepared import Prepared
from metering.tables import tenants

ADD = Prepared(insert(tenants))
CHANGE = Prepared(update(tenants).where(tenants.c.id == bindparam("of_tenant")))
FOUND = Prepared(
    select(tenants.c.id, tenants.c.suspended)
    .where(tenants.c.id.in_(bindparam("ids", expanding=True)), tenants.c.currency == "USD")
    .order_by(tenants.c.id),
    listed="ids",
)
NAME = Prepared(select(tenants.c.name).where(tenants.c.id == bindparam("tenant_id")))


def tenant(tenant_id: str, *, suspended: bool = False) -> dict[str, object]:
    return {
        "id": tenant_id,
        "name": f"Of {tenant_id}",
        "currency": "USD",
        "time_zone": "UTC",
        "review_opt_in": False,
        "review_delivery": "now",
        "suspended": suspended,
        "created_at_us": 1,
    }


@pytest.fixture
def five(database: Engine) -> Engine:
    with transaction(database) as connection:
        rows = [tenant(f"ten_{number}", suspended=number == 3) for number in range(5)]
        assert ADD.run_each(connection, rows) == 5
    return database


@pytest.mark.parametrize("count", range(6))
def test_a_list_of_any_length_finds_its_rows_once_each(five: Engine, count: int) -> None:
    ids = [f"ten_{number}" for number in range(count)]
    with snapshot(five) as connection:
        found = FOUND.rows(connection, {"ids": ids})
    assert [row.id for row in found] == ids
    assert [row.suspended for row in found] == [number == 3 for number in range(count)]
    assert all(isinstance(row.suspended, bool) for row in found)


def test_an_update_sets_the_columns_that_its_values_name(five: Engine) -> None:
    with transaction(five) as connection:
        assert CHANGE.run(connection, {"of_tenant": "ten_1", "name": "Anew"}) == 1
        assert CHANGE.run(connection, {"of_tenant": "ten_1", "suspended": True}) == 1
        assert CHANGE.run(connection, {"of_tenant": "nobody", "name": "Anew"}) == 0
        assert NAME.value(connection, {"tenant_id": "ten_1"}) == "Anew"
        assert FOUND.one(connection, {"ids": ["ten_1"]}).suspended is True


def test_what_is_not_there_is_null_or_asked_for_in_vain(five: Engine) -> None:
    with snapshot(five) as connection:
        assert NAME.row(connection, {"tenant_id": "nobody"}) is None
        assert NAME.value(connection, {"tenant_id": "nobody"}) is None
        with pytest.raises(NoResultFound):
            NAME.one(connection, {"tenant_id": "nobody"})


def test_a_value_that_is_missing_is_an_error(five: Engine) -> None:
    with snapshot(five) as connection, pytest.raises(Exception, match="tenant_id"):
        NAME.row(connection, {"of_tenant": "ten_1"})


def test_a_value_that_nothing_is_done_with_is_an_error(five: Engine) -> None:
    with transaction(five) as connection:
        for ask in (
            lambda: NAME.row(connection, {"tenant_id": "ten_1", "nobody": 1}),
            lambda: CHANGE.run(connection, {"of_tenant": "ten_1", "nobody": 1, "name": "Anew"}),
            lambda: ADD.run(connection, tenant("ten_5") | {"nobody": 1}),
            lambda: insert_once(connection, tenants, tenant("ten_5") | {"nobody": 1}),
        ):
            with pytest.raises(ArgumentError, match="nobody"):
                ask()
        assert NAME.value(connection, {"tenant_id": "ten_1"}) == "Of ten_1"


def test_errors_are_those_of_sqlalchemy_and_tell_no_values(five: Engine) -> None:
    with pytest.raises(IntegrityError) as caught, transaction(five) as connection:
        ADD.run(connection, tenant("ten_1"))
    assert "Of ten_1" not in str(caught.value)
    with pytest.raises(DBAPIError), snapshot(five) as connection:
        read_without_server(connection)
    with snapshot(five) as connection:  # by a connection that lives
        assert NAME.value(connection, {"tenant_id": "ten_1"}) == "Of ten_1"


def read_without_server(connection: Connection) -> None:
    connection.connection.dbapi_connection.close()  # type: ignore[union-attr]
    NAME.row(connection, {"tenant_id": "ten_1"})


def test_it_runs_within_a_transaction_even_where_none_was_begun(five: Engine) -> None:
    with five.connect() as connection:
        CHANGE.run(connection, {"of_tenant": "ten_1", "name": "Never"})
    with snapshot(five) as connection:
        assert NAME.value(connection, {"tenant_id": "ten_1"}) == "Of ten_1"
