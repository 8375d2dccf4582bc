"""Falsifying what the database keeps takes somebody who removes its guards first."""

from __future__ import annotations

from sqlalchemy import Connection

from billing import triggers


def unguard(connection: Connection, *tables: str) -> None:
    """Let append-only tables be changed."""
    for table in tables:
        for statement in triggers.drop_append_only(table, connection.dialect.name):
            connection.exec_driver_sql(statement)
