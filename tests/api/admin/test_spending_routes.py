from __future__ import annotations

import pytest
from api_cases import House, bearer
from litestar import Litestar
from litestar.testing import TestClient

Client = TestClient[Litestar]


def call(
    client: Client, secret: str, method: str, path: str, body: dict[str, object] | None = None
) -> tuple[int, dict[str, object]]:
    answer = client.request(method, f"/admin{path}", headers=bearer(secret), json=body)
    return answer.status_code, answer.json()


def test_a_grant_is_issued_listed_and_reversed_once(client: Client, house: House) -> None:
    path = f"/tenants/{house.tenant_id}/grants"
    body = {
        "amount": "5",
        "reference": "welcome",
        "kind": "promotional",
        "expires_at": "2027-01-01T00:00:00Z",
    }
    for _ in range(2):
        status, view = call(client, house.operator, "POST", path, body)
        assert (status, view["remaining"], view["kind"]) == (201, "5", "promotional")
    status, listed = call(client, house.finance, "GET", path)
    assert (status, [each["reference"] for each in listed["items"]]) == (200, ["welcome"])
    for expected in (200, 409):
        assert call(client, house.operator, "POST", f"{path}/welcome/reverse")[0] == expected
    assert call(client, house.operator, "POST", f"{path}/none/reverse")[0] == 404
    assert call(client, house.owner, "POST", path, body)[0] == 403
    log = client.get("/admin/audit", headers=bearer(house.operator)).json()["items"]
    assert [line["action"] for line in log] == ["grant.reversed", "grant.issued"]


def test_terms_change_only_where_they_are_given(client: Client, house: House) -> None:
    path = f"/tenants/{house.tenant_id}/terms"
    assert call(client, house.finance, "GET", path)[1]["receivable_limit"] == "0"
    call(client, house.operator, "PUT", path, {"receivable_limit": "100", "alert_below": "2"})
    changed = call(client, house.operator, "PUT", path, {"receivable_limit": "50"})[1]
    assert (changed["receivable_limit"], changed["alert_below"]) == ("50", "2")
    changed = call(client, house.operator, "PUT", path, {"alert_below": None})[1]
    assert (changed["receivable_limit"], changed["alert_below"]) == ("50", None)


def test_an_owner_keeps_budgets_of_its_own_tenant(client: Client, house: House) -> None:
    path = f"/tenants/{house.tenant_id}/budgets"
    body = {"limit": "10", "period": "month", "key_id": next(iter(house.key_ids.values()))}
    status, budget = call(client, house.owner, "POST", path, body)
    assert (status, budget["scope"], budget["kind"], budget["spent"]) == (201, "key", "hard", "0")
    assert len(call(client, house.finance, "GET", path)[1]["items"]) == 1
    for _ in range(2):
        closed = call(client, house.owner, "POST", f"{path}/{budget['id']}/close")
        assert closed[0] == 200
        assert closed[1]["closed_at"] is not None
    assert call(client, house.finance, "GET", path)[1]["items"] == []
    assert call(client, house.owner, "POST", "/tenants/ten_other/budgets", body)[0] == 404
    assert call(client, house.finance, "POST", path, body)[0] == 403
    status, problem = call(client, house.owner, "POST", path, body | {"alerts": [90, 10]})
    assert (status, problem["code"]) == (422, "invalid_budget")


def test_limits_and_projects_reach_only_the_tenants_own_keys(client: Client, house: House) -> None:
    tenant = f"/tenants/{house.tenant_id}"
    key_id = house.key_ids[next(iter(house.key_ids))]
    body = {"key_id": key_id, "concurrency": 3}
    assert call(client, house.operator, "PUT", f"{tenant}/limits", body)[1]["concurrency"] == 3
    assert call(client, house.finance, "GET", f"{tenant}/limits")[1]["items"] == [
        {
            "key_id": key_id,
            "requests_per_minute": None,
            "tokens_per_minute": None,
            "joules_per_minute": None,
            "concurrency": 3,
        }
    ]
    body["key_id"] = "key_of_nobody"
    assert call(client, house.operator, "PUT", f"{tenant}/limits", body)[0] == 404
    status, project = call(client, house.owner, "POST", f"{tenant}/projects", {"name": "search"})
    assert status == 201
    assert call(client, house.owner, "POST", f"{tenant}/projects", {"name": "search"})[0] == 409
    status, key = call(
        client, house.owner, "PUT", f"/keys/{key_id}/project", {"project_id": project["id"]}
    )
    assert (status, key["project_id"]) == (200, project["id"])
    call(client, house.owner, "POST", f"{tenant}/projects/{project['id']}/archive")
    refused = call(
        client, house.owner, "PUT", f"/keys/{key_id}/project", {"project_id": project["id"]}
    )
    assert refused[0] == 409


@pytest.mark.parametrize("field", ["requests_per_minute", "tokens_per_minute", "concurrency"])
def test_a_limit_of_nothing_is_no_limit_but_a_mistake(
    client: Client, house: House, field: str
) -> None:
    path = f"/tenants/{house.tenant_id}/limits"
    assert call(client, house.operator, "PUT", path, {field: 0})[0] == 400


def test_an_owner_says_how_long_content_is_kept_and_what_to_erase(
    client: Client, house: House
) -> None:
    tenant = f"/tenants/{house.tenant_id}"
    assert call(client, house.finance, "GET", f"{tenant}/retention")[1] == {"content_days": None}
    put = call(client, house.owner, "PUT", f"{tenant}/retention", {"content_days": 30})
    assert put == (200, {"content_days": 30})
    erased = call(client, house.owner, "POST", f"{tenant}/erasures", {"everything": True})
    assert erased == (200, {"requests": 0})
    assert call(client, house.owner, "POST", f"{tenant}/erasures", {})[0] == 400
    assert call(client, house.finance, "POST", f"{tenant}/erasures", {"everything": True})[0] == 403


def test_a_metering_key_is_bound_to_its_source_and_tenants(client: Client, house: House) -> None:
    body = {"name": "vllm", "source": "vllm/eu", "tenant_ids": [house.tenant_id]}
    status, made = call(client, house.operator, "POST", "/metering-keys", body)
    assert (status, made["key"]["source"]) == (201, "vllm/eu")
    assert call(client, house.owner, "POST", "/metering-keys", body)[0] == 403
    for wrong in ({"source": "DFlash engine"}, {"tenant_ids": ["ten_none"]}, {"tenant_ids": []}):
        assert call(client, house.operator, "POST", "/metering-keys", body | wrong)[0] in {400, 404}
    listed = call(client, house.operator, "GET", "/metering-keys")[1]["items"]
    assert [each["tenant_ids"] for each in listed] == [[house.tenant_id]]
    revoked = call(client, house.operator, "POST", f"/metering-keys/{listed[0]['id']}/revoke")
    assert revoked[1]["revoked_at"] is not None
