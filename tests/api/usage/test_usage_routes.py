from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from api_app import make_client
from api_cases import HeldClock, House, bearer, make_house
from api_settled import Desk
from billing_cases import energy
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api import tenants
from api.roles import Role
from api.usage.routes import read_usage
from metering.database import transaction
from metering.energy import Grid

Client = TestClient[Litestar]


@pytest.fixture
def client(sqlite_database: Engine, house: House) -> Iterator[Client]:
    with make_client(sqlite_database, read_usage, grid=None) as opened:
        yield opened


def usage(client: Client, secret: str, **query: str) -> dict[str, Any]:
    answer = client.get("/usage", headers=bearer(secret), params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_usage_adds_up_by_day(client: Client, house: House) -> None:
    report = usage(client, house.developer)
    assert report["tenant_id"] == house.tenant_id
    assert report["bucket"] == "day"
    assert [(item["start"], item["requests"]) for item in report["items"]] == [
        ("2026-12-01T00:00:00Z", 2),
        ("2026-12-02T00:00:00Z", 1),
    ]
    first = report["items"][0]
    assert (first["input_tokens"], first["output_tokens"]) == (40, 80)
    assert (first["complete_units"], first["fragment_units"]) == (2, 2)
    assert first["information_bits"] == "15"
    assert report["carbon"] is None
    assert first["energy"] == [
        {"energy_class": "estimated", "requests": 2, "joules": "24.6", "carbon_g": None}
    ]


@pytest.mark.parametrize(
    ("bucket", "starts"),
    [
        ("hour", ["2026-12-01T01:00:00Z", "2026-12-01T02:00:00Z"]),
        ("minute", ["2026-12-01T01:00:00Z", "2026-12-01T02:00:00Z"]),
        ("day", ["2026-12-01T00:00:00Z"]),
    ],
)
def test_buckets_may_be_narrower_and_the_range_is_half_open(
    client: Client, house: House, bucket: str, starts: list[str]
) -> None:
    report = usage(
        client,
        house.developer,
        bucket=bucket,
        start="2026-12-01T01:00:00Z",
        end="2026-12-02T02:00:00Z",
    )
    assert [item["start"] for item in report["items"]] == starts


def test_classes_of_energy_are_never_added_up_and_unknown_is_not_zero(
    client: Client, house: House, desk: Desk
) -> None:
    for number, joules in ((7, energy("measured", 5_000_000)), (8, energy("unavailable", None))):
        desk.settle(house.tenant_id, house.key_ids[Role.DEVELOPER], f"req_{number}", energy=joules)
    report = usage(client, house.owner, start="2026-12-03T00:00:00Z", end="2026-12-04T00:00:00Z")
    [day] = report["items"]
    assert day["energy"] == [
        {"energy_class": "measured", "requests": 1, "joules": "5", "carbon_g": None},
        {"energy_class": "unavailable", "requests": 1, "joules": None, "carbon_g": None},
    ]


def test_days_are_the_tenants_own(client: Client, house: House, sqlite_database: Engine) -> None:
    with transaction(sqlite_database) as connection:
        tenants.change(connection, house.tenant_id, time_zone="Asia/Kathmandu")
    report = usage(client, house.developer)
    assert report["time_zone"] == "Asia/Kathmandu"
    assert [item["start"] for item in report["items"]] == [
        "2026-11-30T18:15:00Z",
        "2026-12-01T18:15:00Z",
    ]


def test_an_operator_sees_one_tenant_or_all(
    client: Client, house: House, desk: Desk, sqlite_database: Engine, held_clock: HeldClock
) -> None:
    other = make_house(sqlite_database, "Umbrella")
    desk.fund(other.tenant_id)
    desk.settle(other.tenant_id, other.key_ids[Role.OWNER], "req_other")
    held_clock.advance(1)
    everybody = usage(client, house.operator)
    assert everybody["tenant_id"] is None
    assert sum(item["requests"] for item in everybody["items"]) == 4
    one = usage(client, house.operator, tenant_id=other.tenant_id)
    assert [item["requests"] for item in one["items"]] == [1]
    assert sum(item["requests"] for item in usage(client, house.finance)["items"]) == 3


def test_another_tenants_usage_is_not_found(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    other = make_house(sqlite_database, "Umbrella")
    for secret, tenant_id in ((other.owner, house.tenant_id), (house.operator, "ten_nobody")):
        answer = client.get("/usage", headers=bearer(secret), params={"tenant_id": tenant_id})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert client.get("/usage", headers=bearer(house.reviewer)).status_code == 403


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"bucket": "year"}, "bucket"),
        ({"bucket": "minute", "start": "2026-11-01T00:00:00Z"}, "bucket"),
        ({"start": "soon"}, "start"),
        ({"end": "2026-12-01"}, "end"),
    ],
)
def test_a_bad_query_names_its_parameter(
    client: Client, house: House, query: dict[str, str], parameter: str
) -> None:
    answer = client.get("/usage", headers=bearer(house.owner), params=query)
    assert (answer.status_code, answer.json()["parameter"]) == (400, parameter)


def test_joules_are_seen_as_carbon_by_the_grid_that_is_configured(
    sqlite_database: Engine, house: House
) -> None:
    grid = Grid(Decimal("360.5"))
    with make_client(sqlite_database, read_usage, grid=grid) as client:
        report = usage(client, house.developer)
    assert report["carbon"]["grid_gco2e_per_kwh"] == "360.5"
    assert "not a measurement" in report["carbon"]["basis"]
    # 24.6 J are 24.6 / 3,600,000 kWh.
    assert report["items"][0]["energy"][0]["carbon_g"] == "0.002463"
