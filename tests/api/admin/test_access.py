"""Who may call which route. Every route is guarded, and a guard says precisely why not."""

from __future__ import annotations

import re

import pytest
from api_cases import HeldClock, House, bearer
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.testing import TestClient

from api.roles import SCOPES, Role, Scope


def test_every_route_asks_for_a_scope(client: TestClient[Litestar]) -> None:
    handlers = [
        handler
        for route in client.app.routes
        for handler in getattr(route, "route_handlers", [])
        if isinstance(handler, HTTPRouteHandler)
        and route.path.startswith("/admin")
        and "OPTIONS" not in handler.http_methods
    ]
    assert len(handlers) == 43
    for handler in handlers:
        scopes = [getattr(guard, "scope", None) for guard in handler.guards or ()]
        assert len(scopes) == 1, handler
        assert scopes[0] in set(Scope)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_key"),
        ({"authorization": "Bearer"}, "missing_key"),
        ({"authorization": "Bearer nonsense"}, "invalid_key"),
        ({"authorization": "Basic dXNlcjpwYXNz"}, "missing_key"),
        ({"x-api-key": "nonsense"}, "invalid_key"),
        ({"authorization": "Bearer \xff\xfe"}, "invalid_key"),
    ],
)
def test_without_a_living_key_there_is_no_answer(
    client: TestClient[Litestar], headers: dict[str, str], code: str
) -> None:
    raw = [(name, value.encode("latin-1")) for name, value in headers.items()]
    answer = client.get("/admin/tenants", headers=raw)
    assert (answer.status_code, answer.json()["code"]) == (401, code)
    assert "www-authenticate" in answer.headers


def test_a_key_comes_in_either_header_and_the_scheme_in_any_case(
    client: TestClient[Litestar], house: House
) -> None:
    for headers in (
        bearer(house.operator),
        {"authorization": f"bearer {house.operator}"},
        {"x-api-key": house.operator},
        {"authorization": "Basic dXNlcjpwYXNz", "x-api-key": house.operator},
    ):
        assert client.get("/admin/tenants", headers=headers).status_code == 200


def test_a_dead_key_is_told_why_it_is_dead(
    client: TestClient[Litestar], house: House, held_clock: HeldClock
) -> None:
    operator = bearer(house.operator)
    owner_id = house.key_ids[Role.OWNER]
    client.post(f"/admin/keys/{owner_id}/rotate", headers=operator, json={"overlap_s": 5})
    developer_id = house.key_ids[Role.DEVELOPER]
    client.post(f"/admin/keys/{developer_id}/revoke", headers=operator)
    held_clock.advance(5)
    expired = client.get("/admin/keys", headers=bearer(house.owner))
    revoked = client.get("/admin/keys", headers=bearer(house.developer))
    assert (expired.status_code, expired.json()["code"]) == (401, "expired_key")
    assert (revoked.status_code, revoked.json()["code"]) == (401, "revoked_key")


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/admin/tenants", Scope.ADMINISTER),
        ("POST", "/admin/tenants", Scope.ADMINISTER),
        ("GET", "/admin/tenants/{tenant}", Scope.READ_BILLING),
        ("PATCH", "/admin/tenants/{tenant}", Scope.MANAGE_TENANT),
        ("POST", "/admin/tenants/{tenant}/suspend", Scope.ADMINISTER),
        ("POST", "/admin/tenants/{tenant}/resume", Scope.ADMINISTER),
        ("POST", "/admin/tenants/{tenant}/credit", Scope.ADMINISTER),
        ("PUT", "/admin/tenants/{tenant}/tariff", Scope.ADMINISTER),
        ("GET", "/admin/tariffs", Scope.ADMINISTER),
        ("POST", "/admin/tariffs", Scope.ADMINISTER),
        ("GET", "/admin/keys", Scope.MANAGE_KEYS),
        ("POST", "/admin/keys", Scope.MANAGE_KEYS),
        ("GET", "/admin/keys/key_1", Scope.MANAGE_KEYS),
        ("POST", "/admin/keys/key_1/rotate", Scope.MANAGE_KEYS),
        ("POST", "/admin/keys/key_1/revoke", Scope.MANAGE_KEYS),
        ("GET", "/admin/audit", Scope.ADMINISTER),
    ],
)
def test_a_role_without_the_scope_is_refused_before_its_body_is_read(
    client: TestClient[Litestar], house: House, method: str, path: str, scope: Scope
) -> None:
    for role in Role:
        answer = client.request(
            method,
            path.format(tenant=house.tenant_id),
            headers=bearer(getattr(house, role)),
            content=None if method == "GET" else b"not json",
        )
        if scope in SCOPES[role]:
            assert answer.status_code not in {401, 403}
        else:
            assert answer.status_code == 403, answer.text
            assert answer.json()["needed_scope"] == scope


def test_use_is_noted_on_the_key(
    client: TestClient[Litestar], house: House, held_clock: HeldClock
) -> None:
    held_clock.advance(90)
    client.get("/admin/tenants", headers=bearer(house.operator))
    key_id = house.key_ids[Role.OPERATOR]
    key = client.get(f"/admin/keys/{key_id}", headers=bearer(house.operator)).json()
    assert key["last_used_at"] == "2026-12-01T00:01:30Z"


def test_no_test_key_changes_what_is_live(client: TestClient[Litestar], house: House) -> None:
    asked = {"role": "owner", "name": "tests", "test_mode": True}
    issued = client.post("/admin/keys", headers=bearer(house.owner), json=asked)
    testing = bearer(issued.json()["secret"])
    doors = [
        (method, re.sub(r"\{[^}]*\}", "any", route.path_format))
        for route in client.app.routes
        for method, (handler, _) in getattr(route, "route_handler_map", {}).items()
        if Scope.MANAGE_TENANT in {getattr(guard, "scope", None) for guard in handler.guards or ()}
    ]
    assert len(doors) >= 8
    for method, path in doors:
        answer = client.request(method, path, headers=testing)
        assert (answer.status_code, answer.json()["needed_scope"]) == (403, "tenant:manage"), path
