"""What the database refuses of invoices: changing one that left the draft, whoever asks."""

from __future__ import annotations

from sqlalchemy import Connection

from billing.triggers import append_only, drop_append_only, drop_refusal, refusal

APPEND_ONLY = ("invoice_payments", "credit_notes")
TERMS = (
    "tenant_id",
    "period",
    "kind",
    "currency",
    "minor_nano",
    "start_us",
    "end_us",
    "number",
    "subtotal_minor",
    "tax_minor",
    "total_minor",
    "credit_minor",
    "due_minor",
    "charges_nano",
    "returned_nano",
    "issuer",
    "customer",
    "finalised_at_us",
    "due_at_us",
)
_LINE_CHANGES = ("insert", "update", "delete")
_LINES = "the lines of an invoice that left the draft never change"


def install(connection: Connection) -> None:
    """Create the triggers of the invoices' tables."""
    for statement in create(connection.dialect.name):
        connection.exec_driver_sql(statement)


def create(dialect: str) -> list[str]:
    """The statements that create the triggers, for `sqlite` or `postgresql`."""
    changed = " OR ".join(f"OLD.{column} IS DISTINCT FROM NEW.{column}" for column in TERMS)
    statements = [statement for table in APPEND_ONLY for statement in append_only(table, dialect)]
    statements += refusal(
        dialect,
        "invoices_terms",
        "UPDATE ON invoices",
        "an invoice that left the draft never changes",
        when=f"OLD.state <> 'draft' AND (NEW.state = 'draft' OR {changed})",
    )
    statements += refusal(
        dialect,
        "invoices_kept",
        "DELETE ON invoices",
        "an invoice that left the draft is never deleted",
        when="OLD.state <> 'draft'",
    )
    for change in _LINE_CHANGES:
        statements += _lines(dialect, change)
    return statements


def drop(dialect: str) -> list[str]:
    """The statements that undo `create`."""
    statements = [
        statement for table in APPEND_ONLY for statement in drop_append_only(table, dialect)
    ]
    for name in ("invoices_terms", "invoices_kept"):
        statements += drop_refusal(dialect, name, "invoices")
    for change in _LINE_CHANGES:
        statements += drop_refusal(dialect, f"invoice_lines_{change}", "invoice_lines")
    return statements


def _lines(dialect: str, change: str) -> list[str]:
    """Refuse to add, change or remove a line where its invoice is no draft."""
    name, row = f"invoice_lines_{change}", "NEW" if change == "insert" else "OLD"
    # Nothing in it comes from outside this module.
    final = f"EXISTS (SELECT 1 FROM invoices WHERE id = {row}.invoice_id AND state <> 'draft')"  # noqa: S608
    event = f"{change.upper()} ON invoice_lines"
    if dialect == "sqlite":
        return refusal(dialect, name, event, _LINES, when=final)
    # PostgreSQL takes no subquery in a trigger's condition, so the function asks.
    return [
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {final} THEN RAISE EXCEPTION '{_LINES}'"
        " USING ERRCODE = 'integrity_constraint_violation'; END IF;"
        f" RETURN {row}; END $$",
        f"CREATE TRIGGER {name} BEFORE {event} FOR EACH ROW EXECUTE FUNCTION {name}()",
    ]
