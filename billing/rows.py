"""Rows that are written once, whichever writer comes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_once(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its key exists; whether it was inserted."""
    if connection.dialect.name == "sqlite":
        return bool(
            connection.execute(
                sqlite.insert(table).values(values).on_conflict_do_nothing()
            ).rowcount
        )
    return bool(
        connection.execute(
            postgresql.insert(table).values(values).on_conflict_do_nothing()
        ).rowcount
    )
