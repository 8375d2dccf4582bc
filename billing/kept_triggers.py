"""What no statement may do to a guarded table: replace its rows, or empty it whole.

Triggers on a deleted row see neither. On SQLite, a row that `OR REPLACE` removes fires no DELETE
trigger unless the connection asked for it by `recursive_triggers`, and our own connections, which
could, replace nothing; on PostgreSQL, TRUNCATE fires none of a row's at all.
"""

from __future__ import annotations

from sqlalchemy import Connection, inspect

from billing.triggers import changes

# Every table of which the database refuses something.
TABLES = (
    *("accounts", "adjustments", "audit_log", "budgets", "calibrations", "compactions"),
    *("confidence_labels", "credit_notes", "erasures", "event_ids", "fundings", "grants", "holds"),
    *("invoice_lines", "invoice_payments", "invoices", "meter_windows", "payment_objects"),
    *("payment_outbox", "payment_webhooks", "rated_lines", "receipts", "request_summaries"),
    *("requests", "review_items", "review_opinions", "review_payouts", "tariff_versions"),
    *("top_ups", "transfers", "usage_events"),
)
_EMPTIED = "kept_tables_no_truncate"
# The statements of a trigger resolve their conflicts as the one that fired it says: this writes a
# row only under OR REPLACE, which takes the default for a null, and else skips it. Under OR ABORT,
# OR FAIL or OR ROLLBACK, spelled out, it fails itself, and so does whatever spelled it out.
_ASK = "INSERT OR IGNORE INTO replacements (replaced) VALUES (NULL)"


def create(connection: Connection) -> list[str]:
    """The statements that create the triggers; the tables are there, `replacements` among them."""
    if connection.dialect.name == "sqlite":
        return [statement for table in TABLES for statement in _not_replaced(connection, table)]
    return [
        f"CREATE FUNCTION {_EMPTIED}() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION USING MESSAGE = TG_TABLE_NAME || ' is never emptied',"
        " ERRCODE = 'integrity_constraint_violation'; END $$",
        *(
            f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table}"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {_EMPTIED}()"
            for table in TABLES
        ),
    ]


def drop(dialect: str) -> list[str]:
    """The statements that undo `create`."""
    if dialect == "sqlite":
        return [f"DROP TRIGGER {table}_no_{way}" for table in TABLES for way in _WAYS]
    dropped = [f"DROP TRIGGER {table}_no_truncate ON {table}" for table in TABLES]
    return [*dropped, f"DROP FUNCTION {_EMPTIED}()"]


_WAYS = ("replacing_insert", "replacing_update")


def _not_replaced(connection: Connection, table: str) -> list[str]:
    inserting, updating = (f"{table}_no_{way}" for way in _WAYS)
    refusal = f"{_ASK}; SELECT RAISE(ABORT, 'rows of {table} are never replaced') WHERE changes()"
    # What an upsert updates is no conflict any more, and asking would be one: its keys stay.
    moved = changes(*_keys(connection, table))
    return [
        f"CREATE TRIGGER {inserting} BEFORE INSERT ON {table} FOR EACH ROW BEGIN {refusal}; END",
        f"CREATE TRIGGER {updating} BEFORE UPDATE ON {table} FOR EACH ROW WHEN ({moved})"
        f" BEGIN {refusal}; END",
    ]


def _keys(connection: Connection, table: str) -> list[str]:
    """The columns by which another row can be in the way."""
    found = inspect(connection)
    unique = [*found.get_unique_constraints(table)]
    named = {name for each in unique for name in each["column_names"]}
    indexes = (each["column_names"] for each in found.get_indexes(table) if each["unique"])
    named.update(name for names in indexes for name in names if name)
    named.update(found.get_pk_constraint(table)["constrained_columns"])
    if not connection.exec_driver_sql(f"PRAGMA table_list({table})").one().wr:
        named.add("rowid")
    return sorted(named)
