"""Forgetting an end user in the usage that other engines reported, rated or not."""

from __future__ import annotations

import json

from sqlalchemy import Connection, select, update

from metering.ingest_tables import outside_usage
from metering.ingestion.envelopes import without_user
from metering.ingestion.outside import request_id as request_of


def forget(
    connection: Connection,
    tenant_id: str,
    end_user: str,
    *,
    request_id: str | None = None,
    until_us: int | None = None,
) -> list[str]:
    """Clear who it was from events' detail; the requests that those events are, or will be.

    An event's id and the hash of its body stay: sent again, it is a duplicate. The caller has the
    tenant's lock, so none of them is being rated.
    """
    column = outside_usage.c
    named = f'"end_user":{json.dumps(end_user, ensure_ascii=False)}'
    query = select(column.source, column.id, column.event_time_us, column.body).where(
        column.tenant_id == tenant_id, column.body.contains(named, autoescape=True)
    )
    if until_us is not None:
        query = query.where(column.event_time_us <= until_us)
    found = []
    for source, event_id, at_us, body in connection.execute(query).all():
        left = without_user(body, end_user)
        made = request_of(tenant_id, source, event_id)
        if left is None or request_id not in (None, made):
            continue
        connection.execute(
            update(outside_usage)
            .where(
                column.tenant_id == tenant_id,
                column.source == source,
                column.id == event_id,
                column.event_time_us == at_us,
            )
            .values(body=left)
        )
        found.append(made)
    return found
