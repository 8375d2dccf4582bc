"""A tenant that pays for reviews, two doubtful answers of its, and the routes to review them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_app import make_client
from api_cases import HeldClock, House, make_house
from api_settled import Desk
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api import tenants
from api.review.routes import review_router
from api.roles import Role
from metering.database import transaction


@pytest.fixture
def desk(sqlite_database: Engine, held_clock: HeldClock, tmp_path: Path) -> Desk:
    return Desk.open(sqlite_database, tmp_path)


@pytest.fixture
def house(sqlite_database: Engine, desk: Desk, held_clock: HeldClock) -> House:
    """A tenant with two items in the queue, `rev_req_1` the older."""
    house = make_house(sqlite_database)
    with transaction(sqlite_database) as connection:
        tenants.change(connection, house.tenant_id, review_opt_in=True)
    desk.fund(house.tenant_id)
    for number in (1, 2):
        desk.settle(
            house.tenant_id,
            house.key_ids[Role.DEVELOPER],
            f"req_{number}",
            review_reason="request_confidence",
        )
        held_clock.advance(1)
    return house


@pytest.fixture
def client(sqlite_database: Engine, house: House, desk: Desk) -> Iterator[TestClient[Litestar]]:
    with make_client(sqlite_database, review_router, signer=desk.signer) as opened:
        yield opened
