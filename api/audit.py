"""The audit log: who changed money, keys, tariffs, tenants or reviews, and when. Append-only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import Connection, insert, select

from api import tenants
from api.tables import audit_log
from metering import clock

CLI = "cli"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One line of the log. `actor` is a key id, or "cli"."""

    seq: int
    at_us: int
    actor: str
    action: str
    tenant_id: str | None
    subject: str
    detail: dict[str, Any]


def write(
    connection: Connection,
    *,
    actor: str,
    action: str,
    subject: str,
    tenant_id: str | None = None,
    **detail: Any,
) -> None:
    """Append a line in the transaction of the change it speaks of, so that neither is alone.

    `action` is dotted and past tense ("credit.granted"); `detail` is plain JSON, never a secret.
    """
    connection.execute(
        insert(audit_log).values(
            at_us=clock.now_us(),
            actor=actor,
            action=action,
            tenant_id=tenant_id,
            subject=subject,
            detail=msgspec.json.encode(detail, order="sorted").decode(),
        )
    )


def entries(
    connection: Connection, *, tenant_id: str | None = None, limit: int, before: int | None = None
) -> list[AuditEntry]:
    """Lines, newest first: of one tenant, or all. `before` is an exclusive `seq`.

    Raises NotFound for a tenant that there is not.
    """
    if tenant_id is not None:
        tenants.require(connection, tenant_id)
    query = select(audit_log).order_by(audit_log.c.seq.desc()).limit(limit)
    if tenant_id is not None:
        query = query.where(audit_log.c.tenant_id == tenant_id)
    if before is not None:
        query = query.where(audit_log.c.seq < before)
    return [
        AuditEntry(**{**row._mapping, "detail": msgspec.json.decode(row.detail)})
        for row in connection.execute(query)
    ]
