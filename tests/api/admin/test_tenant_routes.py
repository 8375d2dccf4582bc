from __future__ import annotations

import pytest
from api_cases import House, bearer, make_house
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

Client = TestClient[Litestar]


def test_a_tenant_is_created_listed_and_read(client: Client, house: House) -> None:
    operator = bearer(house.operator)
    created = client.post(
        "/admin/tenants",
        headers=operator,
        json={"name": "Umbrella", "time_zone": "Europe/Berlin", "tariff": "composite"},
    )
    assert created.status_code == 201, created.text
    tenant = created.json()
    assert tenant["name"] == "Umbrella"
    assert tenant["created_at"] == "2026-12-01T00:00:00Z"
    listed = client.get("/admin/tenants", headers=operator).json()
    assert {item["id"] for item in listed["items"]} == {tenant["id"], house.tenant_id}
    assert client.get(f"/admin/tenants/{tenant['id']}", headers=operator).json() == tenant


@pytest.mark.parametrize(
    ("body", "status", "code", "parameter"),
    [
        ({}, 400, "invalid_body", "name"),
        ({"name": "x", "colour": "red"}, 400, "invalid_body", "colour"),
        ({"name": "x", "currency": "usd"}, 400, "invalid_body", "currency"),
        ({"name": "x", "time_zone": "Mars/Olympus"}, 400, "invalid_parameter", "time_zone"),
        ({"name": "x", "review_delivery": "later"}, 400, "invalid_body", "review_delivery"),
        ({"name": "x", "tariff": "nonsense"}, 409, "no_tariff", None),
        ({"name": "x", "tariff": "token", "currency": "EUR"}, 409, "tariff_conflict", None),
        ({"name": "x", "review_opt_in": "yes"}, 400, "invalid_body", "review_opt_in"),
    ],
)
def test_a_tenant_that_makes_no_sense_is_refused_and_nothing_is_left(
    client: Client, house: House, body: dict[str, str], status: int, code: str, parameter: str
) -> None:
    answer = client.post("/admin/tenants", headers=bearer(house.operator), json=body)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert answer.json().get("parameter") == parameter
    listed = client.get("/admin/tenants", headers=bearer(house.operator)).json()
    assert len(listed["items"]) == 1


def test_an_owner_changes_its_own_tenant_and_sees_no_other(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    other = make_house(sqlite_database, "Umbrella")
    owner = bearer(house.owner)
    agreed = {"review_opt_in": True, "review_redaction": False}
    changed = client.patch(f"/admin/tenants/{house.tenant_id}", headers=owner, json=agreed).json()
    assert {name: changed[name] for name in agreed} == agreed
    for answer in (
        client.patch(f"/admin/tenants/{other.tenant_id}", headers=owner, json={"name": "mine"}),
        client.get(f"/admin/tenants/{other.tenant_id}", headers=owner),
        client.get("/admin/tenants/ten_nobody", headers=owner),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_an_owner_cannot_lift_its_own_suspension(client: Client, house: House) -> None:
    path = f"/admin/tenants/{house.tenant_id}"
    suspended = client.post(f"{path}/suspend", headers=bearer(house.operator))
    assert suspended.status_code == 200
    assert suspended.json()["suspended"] is True
    assert (
        client.patch(path, headers=bearer(house.owner), json={"suspended": False}).json()[
            "parameter"
        ]
        == "suspended"
    )
    assert client.post(f"{path}/resume", headers=bearer(house.owner)).status_code == 403
    resumed = client.post(f"{path}/resume", headers=bearer(house.operator))
    assert resumed.json()["suspended"] is False


def test_pages_follow_one_another(client: Client, house: House) -> None:
    operator = bearer(house.operator)
    for number in range(4):
        client.post("/admin/tenants", headers=operator, json={"name": f"t{number}"})
    seen: list[str] = []
    cursor = None
    while True:
        query = {"limit": "2"} | ({"cursor": cursor} if cursor else {})
        page = client.get("/admin/tenants", headers=operator, params=query).json()
        assert len(page["items"]) <= 2
        seen += [item["id"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 5
    for query in ({"cursor": "nonsense"}, {"limit": "0"}, {"limit": "5000"}):
        assert client.get("/admin/tenants", headers=operator, params=query).status_code == 400


def test_every_change_leaves_a_line_in_the_audit_log(client: Client, house: House) -> None:
    operator = bearer(house.operator)
    path = f"/admin/tenants/{house.tenant_id}"
    client.patch(path, headers=bearer(house.owner), json={"review_opt_in": True})
    client.post(f"{path}/suspend", headers=operator)
    client.patch("/admin/tenants/ten_nobody", headers=operator, json={"name": "x"})
    log = client.get("/admin/audit", headers=operator).json()
    lines = [(line["action"], line["actor"], line["detail"]) for line in log["items"]]
    assert [(action, detail) for action, _, detail in lines] == [
        ("tenant.suspended", {}),
        ("tenant.changed", {"review_opt_in": True}),
    ]
    assert {line["tenant_id"] for line in log["items"]} == {house.tenant_id}
    page = client.get("/admin/audit", headers=operator, params={"limit": 1}).json()
    rest = client.get(
        "/admin/audit", headers=operator, params={"cursor": page["next_cursor"]}
    ).json()
    assert page["items"] + rest["items"] == log["items"]
