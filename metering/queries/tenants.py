"""Tenants as their records need them: what they are called, pay in, and call a day."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, select

from metering.tables import tenants


class TenantRow(msgspec.Struct, frozen=True):
    """Whose records these are."""

    id: str
    name: str
    currency: str
    time_zone: str


def tenant(connection: Connection, tenant_id: str) -> TenantRow | None:
    """The tenant with this id, or null."""
    row = connection.execute(
        select(tenants.c.id, tenants.c.name, tenants.c.currency, tenants.c.time_zone).where(
            tenants.c.id == tenant_id
        )
    ).one_or_none()
    return None if row is None else TenantRow(*row)
