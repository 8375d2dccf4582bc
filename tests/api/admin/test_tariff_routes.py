from __future__ import annotations

from typing import Any

from api_cases import House, bearer
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from billing import tariffs
from billing.catalogue import tariff_in_force
from metering import clock
from metering.database import snapshot

Client = TestClient[Litestar]


def document(**changes: Any) -> dict[str, Any]:
    return {**tariffs.document(tariffs.shipped()["token"]), **changes}


def test_the_shipped_tariffs_are_listed_with_their_documents(client: Client, house: House) -> None:
    listed = client.get("/admin/tariffs", headers=bearer(house.operator)).json()["items"]
    assert {item["name"] for item in listed} >= set(tariffs.shipped())
    assert document() in [item["document"] for item in listed]


def test_a_published_version_takes_over_at_its_moment(client: Client, house: House) -> None:
    operator = bearer(house.operator)
    body = {
        "document": document(title="Dearer"),
        "effective_from": "2027-01-01T00:00:00Z",
    }
    published = client.post("/admin/tariffs", headers=operator, json=body)
    assert published.status_code == 201, published.text
    assert published.json()["version"] == 2
    versions = [
        item
        for item in client.get("/admin/tariffs", headers=operator).json()["items"]
        if item["name"] == "token"
    ]
    assert versions[0]["effective_to"] == versions[1]["effective_from"] == body["effective_from"]
    again = client.post("/admin/tariffs", headers=operator, json=body)
    assert again.json()["id"] == published.json()["id"]


def test_a_faulty_document_is_refused_with_every_fault(client: Client, house: House) -> None:
    body = {"document": document(currency="money", colour="red")}
    answer = client.post("/admin/tariffs", headers=bearer(house.operator), json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_tariff")
    faults = answer.json()["errors"]
    assert any("currency" in fault for fault in faults)
    assert any("colour" in fault for fault in faults)


def test_a_version_that_would_rewrite_the_past_is_a_conflict(client: Client, house: House) -> None:
    body = {"document": document(title="Older"), "effective_from": "1970-01-01T00:00:00Z"}
    answer = client.post("/admin/tariffs", headers=bearer(house.operator), json=body)
    assert (answer.status_code, answer.json()["code"]) == (409, "tariff_conflict")


def test_a_tenant_is_put_on_a_tariff(client: Client, house: House, sqlite_database: Engine) -> None:
    path = f"/admin/tenants/{house.tenant_id}/tariff"
    operator = bearer(house.operator)
    answer = client.put(path, headers=operator, json={"tariff": "semantic"})
    assert answer.status_code == 200
    assert answer.json()["effective_from"] == "2026-12-01T00:00:00Z"
    with snapshot(sqlite_database) as connection:
        found = tariff_in_force(connection, house.tenant_id, clock.now_us())
    assert found.tariff == "semantic"
    assert client.put(path, headers=operator, json={"tariff": "nonsense"}).status_code == 409
    nobody = client.put("/admin/tenants/ten_x/tariff", headers=operator, json={"tariff": "token"})
    assert nobody.status_code == 404


def test_a_tenant_gets_its_own_prices(
    client: Client, house: House, sqlite_database: Engine
) -> None:
    operator = bearer(house.operator)
    path = f"/admin/tenants/{house.tenant_id}/tariff"
    body = {"changes": {"output": {"per_million": "0.30"}}, "base": "semantic"}
    answer = client.put(f"{path}/overrides", headers=operator, json=body)
    assert answer.status_code == 200, answer.text
    mine = answer.json()
    assert (mine["document"]["tenant"], mine["document"]["base"]) == (house.tenant_id, "semantic@1")
    assert mine["document"]["output"]["per_million"] == "0.3"
    assert mine["document"]["output"]["units"]["complete"] == "0.9"
    assert (
        client.put(f"{path}/overrides", headers=bearer(house.owner), json=body).status_code == 403
    )
    wrong = {"changes": {"output": {"per_million": 3}}}
    refused = client.put(f"{path}/overrides", headers=operator, json=wrong)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_tariff")
    with snapshot(sqlite_database) as connection:
        assert tariff_in_force(connection, house.tenant_id, clock.now_us()).id == mine["id"]
    actions = [
        item["action"] for item in client.get("/admin/audit", headers=operator).json()["items"]
    ]
    assert actions.count("tariff.overridden") == 1
