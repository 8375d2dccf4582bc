"""Moments that are asked for: every one has a name in every time zone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_app import make_client
from api_cases import HeldClock, House, bearer, make_house
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api.admin.routes import admin_router
from api.exports.routes import exports_router
from api.payments.cashier import Cashier
from api.usage import billing_routes, routes
from api.usage import spending_routes as spent
from billing.receipts import Signer

Client = TestClient[Litestar]


@pytest.fixture
def house(sqlite_database: Engine, held_clock: HeldClock) -> House:
    return make_house(sqlite_database)


@pytest.fixture
def client(sqlite_database: Engine, house: House, tmp_path: Path) -> Iterator[Client]:
    handlers = (
        billing_routes.read_charges,
        billing_routes.list_receipts,
        routes.read_usage,
        spent.read_spending,
        exports_router,
        admin_router,
    )
    with make_client(
        sqlite_database,
        *handlers,
        signer=Signer.open(tmp_path / "receipt.pem"),
        cashier=Cashier(sqlite_database, None, "https://gateway.example", 1000),
    ) as opened:
        yield opened


@pytest.mark.parametrize(
    "at",
    [
        "0001-01-01T00:00:00+23:59",
        "1969-12-31T23:59:59Z",
        "9999-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59.999999-23:59",
    ],
)
def test_a_time_at_the_ends_of_the_calendar_is_refused_wherever_one_is_asked_for(
    client: Client, house: House, at: str
) -> None:
    for path in ("charges", "usage", "spending", "receipts", "exports/usage", "exports/receipts"):
        more = {"by": "key"} if path == "spending" else {}
        for name in ("start", "end"):
            answer = client.get(f"/{path}", headers=bearer(house.owner), params={name: at, **more})
            assert (answer.status_code, answer.json().get("parameter")) == (400, name), answer.text
    tenant = f"/admin/tenants/{house.tenant_id}"
    for method, path, name, body in (
        ("POST", "/admin/keys", "expires_at", {"role": "owner", "name": "n"}),
        ("POST", f"{tenant}/grants", "expires_at", {"amount": "1", "reference": "r"}),
        ("POST", f"{tenant}/grants", "effective_from", {"amount": "1", "reference": "r"}),
        ("POST", f"{tenant}/erasures", "ended_before", {}),
        ("PUT", f"{tenant}/tariff", "effective_from", {"tariff": "token"}),
        ("PUT", f"{tenant}/tariff/overrides", "effective_from", {"changes": {}}),
    ):
        key = house.owner if path.endswith(("keys", "erasures")) else house.operator
        answer = client.request(method, path, headers=bearer(key), json=body | {name: at})
        assert (answer.status_code, answer.json().get("parameter")) == (400, name), answer.text
