"""`/admin/keys`: issue, list, rotate and revoke. Owners reach their own tenant's keys only."""

from __future__ import annotations

from litestar import get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Engine as Database

from api import audit, cursors, keys
from api.admin.schemas import IssuedKeyView, KeyPage, KeyRequest, KeyView, RotateRequest
from api.auth import Principal, Scope, requires, visible_tenant
from api.error_reports import documented
from api.errors import Conflict, Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.schemas import CursorQuery, LimitQuery, PathId, TenantQuery, to_us_or_null
from metering.database import snapshot, transaction

LISTING = "keys"


@post(
    "/keys",
    guards=[requires(Scope.MANAGE_KEYS)],
    summary="Issue a key",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def create_key(
    data: JSONBody[KeyRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
) -> IssuedKeyView:
    """Issue a key. The secret is in this answer and nowhere else. A test key issues test keys."""
    if principal.test_mode and not data.test_mode:
        raise InvalidParameter("a test key issues test keys only", "test_mode")
    with transaction(database) as connection:
        issued = keys.create(
            connection,
            tenant_id=visible_tenant(principal, data.tenant_id),
            role=data.role,
            name=data.name,
            test_mode=data.test_mode,
            expires_at_us=to_us_or_null(data.expires_at, "expires_at"),
        )
        audit.write(
            connection,
            actor=principal.key_id,
            action="key.created",
            subject=issued.key.id,
            tenant_id=issued.key.tenant_id,
            role=issued.key.role,
            name=issued.key.name,
            expires_at_us=issued.key.expires_at_us,
        )
    return IssuedKeyView.of(issued)


@get(
    "/keys",
    guards=[requires(Scope.MANAGE_KEYS)],
    summary="List keys",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def list_keys(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = cursors.PAGE_DEFAULT,
) -> KeyPage:
    """Keys, dead ones too, newest first."""
    after = cursors.decode(LISTING, cursor)
    with snapshot(database) as connection:
        found = keys.listing(
            connection, visible_tenant(principal, tenant_id), limit=limit + 1, after=after
        )
    shown, following = cursors.page(LISTING, found, limit, lambda row: (row.created_at_us, row.id))
    return KeyPage([KeyView.of(key) for key in shown], following)


@get(
    "/keys/{key_id:str}",
    guards=[requires(Scope.MANAGE_KEYS)],
    summary="Read a key",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def read_key(
    principal: NamedDependency[Principal], database: NamedDependency[Database], key_id: PathId
) -> KeyView:
    """One key, without its secret."""
    with snapshot(database) as connection:
        return KeyView.of(keys.owned(connection, principal.tenant_id, key_id))


@post(
    "/keys/{key_id:str}/rotate",
    guards=[requires(Scope.MANAGE_KEYS)],
    summary="Replace a key",
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound, Conflict),
    sync_to_thread=True,
)
def rotate_key(
    data: JSONBody[RotateRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    key_id: PathId,
) -> IssuedKeyView:
    """Issue a successor with the same rights; both are valid for `overlap_s`."""
    with transaction(database) as connection:
        old = keys.in_reach(connection, principal, key_id)
        issued = keys.rotate(connection, key_id, overlap_s=data.overlap_s)
        audit.write(
            connection,
            actor=principal.key_id,
            action="key.rotated",
            subject=key_id,
            tenant_id=old.tenant_id,
            successor=issued.key.id,
            overlap_s=data.overlap_s,
        )
    return IssuedKeyView.of(issued)


@post(
    "/keys/{key_id:str}/revoke",
    guards=[requires(Scope.MANAGE_KEYS)],
    summary="Revoke a key",
    status_code=200,
    responses=documented(InvalidParameter, Unauthenticated, Forbidden, NotFound, Conflict),
    sync_to_thread=True,
)
def revoke_key(
    principal: NamedDependency[Principal], database: NamedDependency[Database], key_id: PathId
) -> KeyView:
    """End a key at once. Idempotent; the last operator key can't be revoked here."""
    with transaction(database) as connection:
        old = keys.in_reach(connection, principal, key_id)
        key = keys.revoke(connection, key_id)
        if old.revoked_at_us is None:
            audit.write(
                connection,
                actor=principal.key_id,
                action="key.revoked",
                subject=key_id,
                tenant_id=key.tenant_id,
            )
    return KeyView.of(key)
