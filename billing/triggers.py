"""What the database itself refuses: changing what was booked, signed or resolved.

The code never does these things; the triggers hold for whoever else has a connection. Both the
migration and the tests install them from here, so that the two cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection

APPEND_ONLY = ("transfers", "rated_lines", "receipts", "adjustments")
TERMS = ("tariff", "version", "currency", "document", "document_sha256", "effective_from_us")


class Refusal(NamedTuple):
    """What a table refuses, always or where `when` holds of OLD and NEW."""

    name: str
    action: str
    table: str
    message: str
    when: str | None


def install(connection: Connection) -> None:
    """Create the triggers of billing's tables."""
    for statement in create(connection.dialect.name):
        connection.exec_driver_sql(statement)


def create(dialect: str) -> list[str]:
    """The statements that create the triggers, for `sqlite` or `postgresql`."""
    statements = [statement for table in APPEND_ONLY for statement in append_only(table, dialect)]
    statements += refusal(
        dialect,
        "tariff_versions_terms",
        "UPDATE ON tariff_versions",
        "the terms of a published tariff version never change",
        when=changes(*TERMS),
    )
    statements += refusal(
        dialect,
        "tariff_versions_kept",
        "DELETE ON tariff_versions",
        "a published tariff version is never deleted",
    )
    statements += refusal(
        dialect,
        "holds_resolved_once",
        "UPDATE ON holds",
        "a resolved hold never changes",
        when="OLD.state <> 'pending'",
    )
    return statements


def drop(dialect: str) -> list[str]:
    """The statements that undo `create`."""
    statements = [
        statement for table in APPEND_ONLY for statement in drop_append_only(table, dialect)
    ]
    for name, table in (
        ("tariff_versions_terms", "tariff_versions"),
        ("tariff_versions_kept", "tariff_versions"),
        ("holds_resolved_once", "holds"),
    ):
        statements += drop_refusal(dialect, name, table)
    return statements


def refuse(dialect: str, refusals: Iterable[Refusal]) -> list[str]:
    """The statements that refuse each of these."""
    return [
        statement
        for each in refusals
        for statement in refusal(
            dialect, each.name, f"{each.action} ON {each.table}", each.message, when=each.when
        )
    ]


def allow(dialect: str, refusals: Iterable[Refusal]) -> list[str]:
    """The statements that undo `refuse`."""
    return [
        statement for each in refusals for statement in drop_refusal(dialect, each.name, each.table)
    ]


def changes(*columns: str) -> str:
    """The condition that an UPDATE makes any of these something else."""
    return " OR ".join(f"OLD.{column} IS DISTINCT FROM NEW.{column}" for column in columns)


def rewrites(*columns: str) -> str:
    """The condition that an UPDATE makes any of these something else than null."""
    return " OR ".join(
        f"(NEW.{column} IS NOT NULL AND OLD.{column} IS DISTINCT FROM NEW.{column})"
        for column in columns
    )


def append_only(table: str, dialect: str) -> list[str]:
    """The statements that make `table` refuse UPDATE and DELETE."""
    message = f"{table} is append-only"
    return [
        statement
        for action in ("UPDATE", "DELETE")
        for statement in refusal(
            dialect, f"{table}_no_{action.lower()}", f"{action} ON {table}", message
        )
    ]


def drop_append_only(table: str, dialect: str) -> list[str]:
    """The statements that undo `append_only`."""
    return [
        statement
        for action in ("update", "delete")
        for statement in drop_refusal(dialect, f"{table}_no_{action}", table)
    ]


def refusal(
    dialect: str, name: str, event: str, message: str, *, when: str | None = None
) -> list[str]:
    """The statements that refuse `event` ("UPDATE ON holds"), always or where `when` holds."""
    condition = f"WHEN ({when}) " if when else ""
    if dialect == "sqlite":
        return [
            f"CREATE TRIGGER {name} BEFORE {event} FOR EACH ROW {condition}"
            f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        ]
    return [
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = 'integrity_constraint_violation';"
        " END $$",
        f"CREATE TRIGGER {name} BEFORE {event} FOR EACH ROW {condition}EXECUTE FUNCTION {name}()",
    ]


def drop_refusal(dialect: str, name: str, table: str) -> list[str]:
    """The statements that undo `refusal`."""
    if dialect == "sqlite":
        return [f"DROP TRIGGER {name}"]
    return [f"DROP TRIGGER {name} ON {table}", f"DROP FUNCTION {name}()"]
