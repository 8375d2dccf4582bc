from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

import pytest
from api_app import make_client
from api_cases import HeldClock, House, bearer, make_house
from api_settled import Desk
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api import tenants
from api.usage import billing_routes
from billing import receipts
from metering.database import transaction

Client = TestClient[Litestar]


@pytest.fixture
def client(sqlite_database: Engine, house: House) -> Iterator[Client]:
    handlers = (
        billing_routes.read_balance,
        billing_routes.read_charges,
        billing_routes.list_receipts,
        billing_routes.read_receipt,
        billing_routes.receipt_keys,
    )
    with make_client(sqlite_database, *handlers) as opened:
        yield opened


def test_the_balance_is_what_was_granted_less_what_was_charged(
    client: Client, house: House
) -> None:
    finance = bearer(house.finance)
    balance = client.get("/balance", headers=finance).json()
    charges = client.get("/charges", headers=finance).json()
    assert balance["tenant_id"] == house.tenant_id
    assert balance["currency"] == "USD"
    assert balance["held"] == "0"
    assert Decimal(balance["available"]) == 10 - Decimal(charges["total"])
    assert Decimal(charges["total"]) > 0


def test_charges_add_up_by_day_and_component(client: Client, house: House) -> None:
    charges = client.get("/charges", headers=bearer(house.finance)).json()
    days = {item["day"] for item in charges["items"]}
    assert days == {"2026-12-01", "2026-12-02"}
    assert sum(Decimal(item["amount"]) for item in charges["items"]) == Decimal(charges["total"])
    first = [item for item in charges["items"] if item["day"] == "2026-12-01"]
    second = [item for item in charges["items"] if item["day"] == "2026-12-02"]
    assert sum(Decimal(i["amount"]) for i in first) == 2 * sum(Decimal(i["amount"]) for i in second)


def test_a_range_of_charges_is_half_open(client: Client, house: House) -> None:
    query = {"start": "2026-12-01T01:00:00Z", "end": "2026-12-01T02:00:00Z"}
    charges = client.get("/charges", headers=bearer(house.finance), params=query).json()
    assert (charges["start"], charges["end"]) == (query["start"], query["end"])
    whole = client.get("/charges", headers=bearer(house.finance)).json()
    assert Decimal(charges["total"]) * 3 == Decimal(whole["total"])


def test_days_are_the_tenants_own(client: Client, house: House, sqlite_database: Engine) -> None:
    with transaction(sqlite_database) as connection:
        tenants.change(connection, house.tenant_id, time_zone="America/Los_Angeles")
    charges = client.get("/charges", headers=bearer(house.finance)).json()
    assert charges["time_zone"] == "America/Los_Angeles"
    assert {item["day"] for item in charges["items"]} == {"2026-11-30", "2026-12-01"}


def test_receipts_are_paged_newest_first(client: Client, house: House) -> None:
    finance = bearer(house.finance)
    seen: list[str] = []
    cursor = None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = client.get("/receipts", headers=finance, params=query).json()
        seen += [item["request_id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ["req_3", "req_2", "req_1"]
    query = {"start": "2026-12-01T02:00:00Z", "end": "2026-12-02T00:00:00Z"}
    page = client.get("/receipts", headers=finance, params=query).json()
    assert [item["request_id"] for item in page["items"]] == ["req_2"]


def test_a_listed_receipt_says_what_its_request_came_to(client: Client, house: House) -> None:
    row = client.get("/receipts", headers=bearer(house.finance)).json()["items"][-1]
    assert row["ended_at"] == "2026-12-01T01:00:00Z"
    assert (row["complete_units"], row["fragment_units"], row["output_tokens"]) == (1, 1, 40)
    assert (row["energy_class"], row["joules"]) == ("estimated", "12.3")
    assert (row["adjusted"], row["currency"]) == ("0", "USD")
    assert Decimal(row["total"]) > 0


def test_a_receipt_verifies_with_the_published_keys_alone(client: Client, house: House) -> None:
    answer = client.get("/receipts/req_1", headers=bearer(house.developer)).json()
    keys = client.get("/receipt-keys")
    assert keys.status_code == 200
    verified = receipts.verify(answer["receipt"], keys.json())
    assert verified
    assert answer["adjustments"] == []


def test_another_tenants_records_are_not_found(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    other = make_house(sqlite_database, "Umbrella")
    stranger = bearer(other.owner)
    answers = [
        client.get("/receipts/req_1", headers=stranger),
        client.get("/receipts/req_nobody", headers=bearer(house.owner)),
    ]
    for path in ("/balance", "/charges", "/receipts"):
        query = {"tenant_id": house.tenant_id}
        answers.append(client.get(path, headers=stranger, params=query))
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert client.get("/receipts", headers=stranger).json()["items"] == []


def test_an_operator_says_whose_records_it_wants(client: Client, house: House) -> None:
    operator = bearer(house.operator)
    for path in ("/balance", "/charges", "/receipts"):
        assert client.get(path, headers=operator).json()["parameter"] == "tenant_id"
        query = {"tenant_id": "ten_nobody"}
        assert client.get(path, headers=operator, params=query).status_code == 404
        query = {"tenant_id": house.tenant_id}
        assert client.get(path, headers=operator, params=query).status_code == 200
    assert client.get("/receipts/req_1", headers=operator).status_code == 200


def test_reviewers_see_no_money(client: Client, house: House) -> None:
    for path in ("/balance", "/charges", "/receipts", "/receipts/req_1"):
        assert client.get(path, headers=bearer(house.reviewer)).status_code == 403


def test_a_suspended_tenant_still_reads_its_records(
    client: Client, house: House, sqlite_database: Engine, desk: Desk, held_clock: HeldClock
) -> None:
    with transaction(sqlite_database) as connection:
        tenants.suspend(connection, house.tenant_id)
    for path in ("/balance", "/charges", "/receipts", "/receipts/req_1"):
        assert client.get(path, headers=bearer(house.owner)).status_code == 200


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ({"start": "yesterday"}, "start"),
        ({"start": "2026-12-01T00:00:00"}, "start"),
        ({"end": "1969-12-31T00:00:00Z"}, "end"),
        ({"start": "2026-12-02T00:00:00Z", "end": "2026-12-01T00:00:00Z"}, "start"),
        ({"tenant_id": "a b"}, "tenant_id"),
        ({"cursor": "nonsense"}, "cursor"),
        ({"limit": "0"}, "limit"),
    ],
)
def test_a_bad_query_names_its_parameter(
    client: Client, house: House, query: dict[str, str], parameter: str
) -> None:
    answer = client.get("/receipts", headers=bearer(house.owner), params=query)
    assert (answer.status_code, answer.json()["parameter"]) == (400, parameter)


def test_a_filter_that_an_address_does_not_have_is_refused_not_ignored(
    client: TestClient[Litestar], house: House
) -> None:
    finance = bearer(house.finance)
    for path, query, known in (
        ("/charges", {"from": "2026-11-01"}, "start"),
        ("/receipts", {"period": "2026-11", "limit": 1}, "cursor"),
        ("/balance", {"currency": "EUR"}, "tenant_id"),
    ):
        answer = client.get(path, headers=finance, params=query)
        assert answer.status_code == 400, path
        assert answer.json()["parameter"] == next(iter(query))
        assert known in answer.json()["detail"]
    assert client.get("/balance", params={"currency": "EUR"}).status_code == 401
