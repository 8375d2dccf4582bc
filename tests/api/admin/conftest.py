"""The `/admin` routes over a fresh SQLite database, and who calls them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_app import make_client
from api_cases import HeldClock, House, make_house
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api.admin.routes import admin_router
from api.payments.cashier import Cashier
from billing.catalogue import install_shipped
from billing.signing import Signer
from metering.database import transaction


@pytest.fixture
def house(sqlite_database: Engine, held_clock: HeldClock) -> House:
    """A tenant, its keys, the operator's, and the shipped tariffs."""
    with transaction(sqlite_database) as connection:
        install_shipped(connection)
    return make_house(sqlite_database)


@pytest.fixture
def client(sqlite_database: Engine, house: House, tmp_path: Path) -> Iterator[TestClient[Litestar]]:
    with make_client(
        sqlite_database,
        admin_router,
        signer=Signer.open(tmp_path / "receipt.pem"),
        cashier=Cashier(sqlite_database, None, "https://gateway.example", 1000),
    ) as opened:
        yield opened
