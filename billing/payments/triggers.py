"""What the database refuses of payments: forgetting a webhook, or what stands for what."""

from __future__ import annotations

from sqlalchemy import Connection

from billing.triggers import append_only, drop_append_only, drop_refusal, refusal

_KEPT = ("payment_webhooks", "payment_outbox", "top_ups")


def install(connection: Connection) -> None:
    """Create the triggers of the payments' tables."""
    for statement in create(connection.dialect.name):
        connection.exec_driver_sql(statement)


def create(dialect: str) -> list[str]:
    """The statements that create the triggers, for `sqlite` or `postgresql`."""
    statements = append_only("payment_objects", dialect)
    for table in _KEPT:
        statements += refusal(
            dialect, f"{table}_kept", f"DELETE ON {table}", f"rows of {table} are never deleted"
        )
    return statements


def drop(dialect: str) -> list[str]:
    """The statements that undo `create`."""
    statements = drop_append_only("payment_objects", dialect)
    for table in _KEPT:
        statements += drop_refusal(dialect, f"{table}_kept", table)
    return statements
