"""What the database itself refuses: changing a payout or a calibration, or taking it away."""

from __future__ import annotations

from billing.triggers import append_only, drop_append_only

TABLES = ("review_payouts", "calibrations")


def create(dialect: str) -> list[str]:
    """The statements that create the triggers, for `sqlite` or `postgresql`."""
    return [statement for table in TABLES for statement in append_only(table, dialect)]


def drop(dialect: str) -> list[str]:
    """The statements that undo `create`."""
    return [statement for table in TABLES for statement in drop_append_only(table, dialect)]
