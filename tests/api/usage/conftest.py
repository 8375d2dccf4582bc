"""A tenant with three settled requests on two days, and the routes that report them."""

from __future__ import annotations

from pathlib import Path

import pytest
from api_cases import HeldClock, House, make_house
from api_settled import Desk
from billing_cases import unit
from sqlalchemy import Engine

from api.roles import Role


@pytest.fixture
def desk(sqlite_database: Engine, held_clock: HeldClock, tmp_path: Path) -> Desk:
    return Desk.open(sqlite_database, tmp_path)


@pytest.fixture
def house(sqlite_database: Engine, desk: Desk, held_clock: HeldClock) -> House:
    """Two requests on the first of December, one on the second; it is noon of the third."""
    house = make_house(sqlite_database)
    desk.fund(house.tenant_id)
    for number, hours in ((1, 1), (2, 1), (3, 24)):
        held_clock.advance(hours * 3600)
        desk.settle(
            house.tenant_id,
            house.key_ids[Role.DEVELOPER],
            f"req_{number}",
            unit(30),
            unit(10, "fragment", "reduced"),
        )
    held_clock.advance(34 * 3600)
    return house
