"""Rows that are written once, whichever writer comes first."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Connection, Insert, Table
from sqlalchemy.dialects import postgresql, sqlite

from metering.prepared import Prepared


def insert_once(connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
    """Insert a row unless one with its key exists; whether it was inserted."""
    return _inserting(table).row(connection, values) is not None


@cache
def _inserting(table: Table) -> Prepared:
    def statement(dialect: str) -> Insert:
        insert = sqlite.insert if dialect == "sqlite" else postgresql.insert
        # Asked by RETURNING: drivers do not agree on the row count of an INSERT.
        return insert(table).on_conflict_do_nothing().returning(*table.primary_key)

    return Prepared(statement)
