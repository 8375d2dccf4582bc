"""`/admin/audit`: who changed what."""

from __future__ import annotations

from litestar import get
from litestar.di import NamedDependency
from sqlalchemy import Engine as Database

from api import audit, cursors
from api.admin.schemas import AuditEntryView, AuditPage
from api.auth import Scope, requires
from api.error_reports import documented
from api.errors import Forbidden, InvalidCursor, NotFound, Unauthenticated
from api.schemas import CursorQuery, LimitQuery, TenantQuery
from metering.database import snapshot

LISTING = "audit"


@get(
    "/audit",
    guards=[requires(Scope.ADMINISTER)],
    summary="Read the audit log",
    responses=documented(InvalidCursor, Unauthenticated, Forbidden, NotFound),
    sync_to_thread=True,
)
def read_audit_log(
    database: NamedDependency[Database],
    tenant_id: TenantQuery = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = cursors.PAGE_DEFAULT,
) -> AuditPage:
    """Changes of money, keys, tariffs, tenants and reviews, newest first."""
    before = cursors.decode_number(LISTING, cursor)
    with snapshot(database) as connection:
        found = audit.entries(connection, tenant_id=tenant_id, limit=limit + 1, before=before)
    shown, following = cursors.page(LISTING, found, limit, lambda entry: entry.seq)
    return AuditPage([AuditEntryView.of(entry) for entry in shown], following)
