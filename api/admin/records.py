"""The audit line of a change that `/admin` makes for a tenant."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from api import audit
from api.roles import Principal


def record(
    connection: Connection,
    principal: Principal,
    action: str,
    tenant_id: str,
    *,
    subject: str | None = None,
    **detail: Any,
) -> None:
    """Write who did what to a tenant, or to what is the tenant's, within the change's own
    transaction.
    """
    audit.write(
        connection,
        actor=principal.key_id,
        action=action,
        subject=subject or tenant_id,
        tenant_id=tenant_id,
        **detail,
    )
