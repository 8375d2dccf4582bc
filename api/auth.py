"""From a request's headers to who is asking, and whether they may.

A route says what it takes with one guard, `guards=[requires(Scope.READ_USAGE)]`, which runs before
the body is read and finds the database in `app.state.database`; handlers then ask for `principal`.
"""

from __future__ import annotations

from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard
from sqlalchemy import Connection
from sqlalchemy import Engine as Database

from api import keys, tenants
from api.errors import Forbidden, InvalidParameter, MissingKey, NotFound
from api.roles import Principal, Role, Scope
from metering.database import snapshot, transaction

__all__ = [
    "Principal",
    "Role",
    "Scope",
    "presented_key",
    "provide_principal",
    "requires",
    "tenant_in_scope",
    "visible_tenant",
]

_STATE = "dflash_principal"


def requires(scope: Scope) -> Guard:
    """A guard that lets in living keys whose role has `scope`, and notes that the key was used.

    It raises Unauthenticated or Forbidden, and reads the database in a worker thread.
    """

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _handler: BaseRouteHandler) -> None:
        database: Database = connection.app.state.database
        with snapshot(database) as reading:
            key = keys.identify(reading, presented_key(connection))
        if keys.needs_touch(key):
            with transaction(database) as writing:
                keys.touch(writing, key)
        principal = key.principal
        if not principal.may(scope):
            kind = "test key" if principal.test_mode else "key"
            raise Forbidden(f"a {kind} of role {principal.role} may not do this", scope)
        connection.state[_STATE] = principal

    guard.scope = scope  # type: ignore[attr-defined]  # the contract test reads which it is
    return guard


def presented_key(connection: ASGIConnection[Any, Any, Any, Any]) -> str | None:
    """The key in `Authorization: Bearer`, else in `x-api-key`; null when there is neither."""
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return connection.headers.get("x-api-key")


def provide_principal(request: Request[Any, Any, Any]) -> Principal:
    """The dependency `principal`: whom the route's guard let in; without a guard, nobody."""
    principal = request.state.get(_STATE)
    if not isinstance(principal, Principal):
        raise MissingKey("this address lets nobody in")
    return principal


def visible_tenant(principal: Principal, asked: str | None) -> str | None:
    """The tenant that a listing is limited to; null is every tenant, for the operator.

    Raises NotFound when a tenant's key asks for another's.
    """
    if principal.tenant_id is None:
        return asked
    if asked is not None and asked != principal.tenant_id:
        raise NotFound(f"no tenant {asked}")
    return principal.tenant_id


def tenant_in_scope(connection: Connection, principal: Principal, asked: str | None) -> str:
    """The one existing tenant that a route speaks of: the key's own, or the operator's choice.

    Raises NotFound, or InvalidParameter when an operator names none.
    """
    tenant_id = visible_tenant(principal, asked)
    if tenant_id is None:
        raise InvalidParameter("an operator's key has to say which tenant", "tenant_id")
    return tenants.require(connection, tenant_id).id
