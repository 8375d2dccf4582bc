from __future__ import annotations

from typing import Any

import pytest
from api_cases import HeldClock, House, bearer, make_house
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api.roles import Role

Client = TestClient[Litestar]


def issue(client: Client, secret: str, **body: Any) -> dict[str, Any]:
    answer = client.post("/admin/keys", headers=bearer(secret), json={"name": "new", **body})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def test_an_owner_issues_keys_of_its_own_tenant(client: Client, house: House) -> None:
    issued = issue(client, house.owner, role="developer", test_mode=True)
    assert issued["secret"].startswith("dfk_test_")
    assert issued["key"]["tenant_id"] == house.tenant_id
    assert issued["key"]["last_four"] == issued["secret"][-4:]
    listed = client.get("/admin/keys", headers=bearer(house.owner)).json()
    assert issued["key"] in listed["items"]
    assert issued["secret"] not in client.get("/admin/keys", headers=bearer(house.owner)).text


def test_a_test_key_comes_by_no_live_one(client: Client, house: House) -> None:
    testing = bearer(issue(client, house.owner, role="owner", test_mode=True)["secret"])
    body = {"name": "new", "role": "developer"}
    answer = client.post("/admin/keys", headers=testing, json=body)
    assert (answer.status_code, answer.json()["parameter"]) == (400, "test_mode")
    made = client.post("/admin/keys", headers=testing, json={**body, "test_mode": True})
    assert made.status_code == 201


def test_a_test_key_changes_no_live_one(client: Client, house: House) -> None:
    testing = bearer(issue(client, house.owner, role="owner", test_mode=True)["secret"])
    spare = issue(client, house.owner, role="developer", test_mode=True)["key"]["id"]
    live = house.key_ids[Role.DEVELOPER]
    before = client.get(f"/admin/keys/{live}", headers=bearer(house.owner)).json()
    for answer in (
        client.post(f"/admin/keys/{live}/rotate", headers=testing, json={}),
        client.post(f"/admin/keys/{live}/revoke", headers=testing),
        client.put(f"/admin/keys/{live}/project", headers=testing, json={"project_id": None}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
    assert client.get(f"/admin/keys/{live}", headers=bearer(house.owner)).json() == before
    assert client.post(f"/admin/keys/{spare}/revoke", headers=testing).status_code == 200


def test_an_owner_reaches_no_key_but_its_tenants(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    other = make_house(sqlite_database, "Umbrella")
    owner = bearer(house.owner)
    for key_id in (other.key_ids[Role.DEVELOPER], house.key_ids[Role.OPERATOR], "key_nobody"):
        for answer in (
            client.get(f"/admin/keys/{key_id}", headers=owner),
            client.post(f"/admin/keys/{key_id}/rotate", headers=owner, json={}),
            client.post(f"/admin/keys/{key_id}/revoke", headers=owner),
        ):
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    body = {"name": "new", "role": "owner", "tenant_id": other.tenant_id}
    assert client.post("/admin/keys", headers=owner, json=body).status_code == 404
    query = {"tenant_id": other.tenant_id}
    assert client.get("/admin/keys", headers=owner, params=query).status_code == 404
    # Nothing of the other's died or multiplied.
    assert client.get("/admin/keys", headers=bearer(other.owner)).status_code == 200
    assert len(client.get("/admin/keys", headers=bearer(other.owner)).json()["items"]) == 3


@pytest.mark.parametrize(
    ("body", "status", "parameter"),
    [
        ({"role": "operator"}, 400, "role"),
        ({"role": "finance", "test_mode": True}, 400, "test_mode"),
        ({"role": "king"}, 400, "role"),
        ({"role": "owner", "expires_at": "2020-01-01T00:00:00Z"}, 400, "expires_at"),
        ({"role": "owner", "expires_at": "9999-12-31T00:00:00Z"}, 400, "expires_at"),
        ({"role": "owner", "expires_at": "2027-01-01T00:00:00"}, 400, "expires_at"),
        ({"role": "owner", "scopes": ["admin"]}, 400, "scopes"),
    ],
)
def test_a_key_that_makes_no_sense_is_refused(
    client: Client, house: House, body: dict[str, Any], status: int, parameter: str
) -> None:
    answer = client.post("/admin/keys", headers=bearer(house.owner), json={"name": "new", **body})
    assert (answer.status_code, answer.json()["parameter"]) == (status, parameter)


def test_an_operator_issues_keys_for_anyone(client: Client, house: House) -> None:
    for role in Role:
        tenant_id = house.tenant_id if role.of_tenant else None
        assert issue(client, house.operator, role=role, tenant_id=tenant_id)
    body = {"name": "new", "role": "owner", "tenant_id": "ten_nobody"}
    answer = client.post("/admin/keys", headers=bearer(house.operator), json=body)
    assert answer.status_code == 404


def test_after_a_rotation_both_keys_work_until_the_overlap_ends(
    client: Client, house: House, held_clock: HeldClock
) -> None:
    key_id = house.key_ids[Role.OWNER]
    answer = client.post(
        f"/admin/keys/{key_id}/rotate", headers=bearer(house.owner), json={"overlap_s": 30}
    )
    assert answer.status_code == 201
    successor = answer.json()["secret"]
    assert client.get("/admin/keys", headers=bearer(house.owner)).status_code == 200
    assert client.get("/admin/keys", headers=bearer(successor)).status_code == 200
    held_clock.advance(30)
    assert client.get("/admin/keys", headers=bearer(house.owner)).status_code == 401
    assert client.get("/admin/keys", headers=bearer(successor)).status_code == 200


def test_revocation_is_immediate_idempotent_and_logged_once(client: Client, house: House) -> None:
    key_id = house.key_ids[Role.DEVELOPER]
    operator = bearer(house.operator)
    first = client.post(f"/admin/keys/{key_id}/revoke", headers=operator)
    assert first.status_code == 200
    assert client.post(f"/admin/keys/{key_id}/revoke", headers=operator).json() == first.json()
    log = client.get("/admin/audit", headers=operator).json()["items"]
    assert [line["action"] for line in log] == ["key.revoked"]


def test_the_last_operator_key_survives(client: Client, house: House) -> None:
    key_id = house.key_ids[Role.OPERATOR]
    answer = client.post(f"/admin/keys/{key_id}/revoke", headers=bearer(house.operator))
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_no_secret_reaches_the_audit_log(client: Client, house: House) -> None:
    issued = issue(client, house.owner, role="finance")
    key_id = issued["key"]["id"]
    rotated = client.post(
        f"/admin/keys/{key_id}/rotate", headers=bearer(house.owner), json={}
    ).json()
    log = client.get("/admin/audit", headers=bearer(house.operator)).text
    assert rotated["key"]["id"] in log
    for secret in (issued["secret"], rotated["secret"]):
        assert secret not in log
        assert secret[26:69] not in log
