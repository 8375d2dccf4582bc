"""Reconciliation over HTTP: the operator's alone, of everything or of one tenant's month."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from api_app import make_client
from api_cases import HeldClock, House, bearer, make_house
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine, insert

from api.admin.routes import admin_router
from api.payments.cashier import Cashier
from metering.database import transaction
from metering.tables import engine_counters

Client = TestClient[Litestar]
ADDRESS = "/admin/reconciliation"


@pytest.fixture
def house(sqlite_database: Engine, held_clock: HeldClock) -> House:
    return make_house(sqlite_database)


@pytest.fixture
def client(sqlite_database: Engine, house: House) -> Iterator[Client]:
    cashier = Cashier(sqlite_database, None, "https://gateway.example", 1000)
    with make_client(sqlite_database, admin_router, signer=None, cashier=cashier) as opened:
        yield opened


def test_a_difference_is_named_to_the_operator(
    sqlite_database: Engine, client: Client, house: House
) -> None:
    operator = bearer(house.operator)
    assert client.get(ADDRESS, headers=operator).json()["differences"] == []
    with transaction(sqlite_database) as connection:
        counted = {"steps": 1, "blocks": 1, "tokens": 5, "withheld_tokens": 0, "updated_at_us": 0}
        connection.execute(insert(engine_counters).values(engine_epoch="e", **counted))
    found = client.get(ADDRESS, headers=operator).json()
    assert found["differences"] == [
        {
            "check": "event tokens = engine tokens less withheld",
            "subject": "all",
            "expected": "5",
            "actual": "0",
        }
    ]
    assert found["provider"] is None
    scoped = {"tenant_id": house.tenant_id, "period": "2026-11"}
    found = client.get(ADDRESS, headers=operator, params=scoped).json()
    assert (found["differences"], found["periods"]) == ([], [])


def test_what_cannot_be_compared_is_refused(client: Client, house: House) -> None:
    operator = bearer(house.operator)
    for key, query, status in (
        (bearer(house.owner), {}, 403),
        (operator, {"tenant_id": "ten_none"}, 404),
        (operator, {"period": "November"}, 400),
        (operator, {"provider": "true"}, 409),
    ):
        assert client.get(ADDRESS, headers=key, params=query).status_code == status, query
