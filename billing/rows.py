"""Rows that are written once, whichever writer comes first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import postgresql, sqlite


def insert_once(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its key exists; whether it was inserted."""
    # Asked by RETURNING: drivers do not agree on the row count of an INSERT.
    key = list(table.primary_key)
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    statement = insert(table).values(values).on_conflict_do_nothing().returning(*key)
    return connection.execute(statement).first() is not None
