from __future__ import annotations

import pytest
from api_app import make_client
from api_cases import House, bearer, make_house
from litestar import get
from litestar.di import NamedDependency
from sqlalchemy import Engine

from api.auth import Principal, Scope, requires, tenant_in_scope, visible_tenant
from api.errors import Forbidden, InvalidParameter, NotFound
from api.roles import SCOPES, Role
from metering.database import snapshot

OWNER = Principal("key_1", "ten_1", Role.OWNER, test_mode=False)
OPERATOR = Principal("key_2", None, Role.OPERATOR, test_mode=False)


@get("/unguarded", sync_to_thread=False)
def unguarded(principal: NamedDependency[Principal]) -> str:
    return principal.key_id


@get("/guarded", guards=[requires(Scope.GENERATE)], sync_to_thread=False)
def guarded(principal: NamedDependency[Principal]) -> dict[str, str | bool | None]:
    return {
        "key_id": principal.key_id,
        "tenant_id": principal.tenant_id,
        "role": principal.role,
        "test_mode": principal.test_mode,
    }


def test_a_route_whose_guard_was_forgotten_lets_nobody_in(sqlite_database: Engine) -> None:
    house: House = make_house(sqlite_database)
    with make_client(sqlite_database, unguarded) as client:
        answer = client.get("/unguarded", headers=bearer(house.owner))
    assert answer.status_code == 401


def test_a_handler_learns_who_asks(sqlite_database: Engine) -> None:
    house = make_house(sqlite_database)
    with make_client(sqlite_database, guarded) as client:
        answer = client.get("/guarded", headers=bearer(house.developer))
        assert answer.json() == {
            "key_id": house.key_ids[Role.DEVELOPER],
            "tenant_id": house.tenant_id,
            "role": "developer",
            "test_mode": False,
        }
        assert client.get("/guarded", headers=bearer(house.finance)).status_code == 403
        assert client.get("/guarded", headers=bearer(house.operator)).status_code == 403


def test_every_role_may_do_something_and_only_tenants_spend() -> None:
    assert set(SCOPES) == set(Role)
    for role, scopes in SCOPES.items():
        assert scopes
        assert not (Scope.GENERATE in scopes and not role.of_tenant)
        assert not (Scope.ADMINISTER in scopes and role.of_tenant)


def test_an_operators_key_speaks_for_no_tenant() -> None:
    assert OWNER.required_tenant_id == "ten_1"
    with pytest.raises(Forbidden):
        _ = OPERATOR.required_tenant_id


def test_a_tenant_sees_itself_and_nobody_else() -> None:
    assert visible_tenant(OWNER, None) == visible_tenant(OWNER, "ten_1") == "ten_1"
    assert visible_tenant(OPERATOR, None) is None
    assert visible_tenant(OPERATOR, "ten_2") == "ten_2"
    with pytest.raises(NotFound):
        visible_tenant(OWNER, "ten_2")


def test_one_tenant_is_always_one_that_exists(sqlite_database: Engine) -> None:
    house = make_house(sqlite_database)
    with snapshot(sqlite_database) as connection:
        assert tenant_in_scope(connection, OPERATOR, house.tenant_id) == house.tenant_id
        with pytest.raises(InvalidParameter):
            tenant_in_scope(connection, OPERATOR, None)
        with pytest.raises(NotFound):
            tenant_in_scope(connection, OPERATOR, "ten_nobody")
