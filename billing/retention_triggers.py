"""What the database still refuses of usage events once blocks may be compacted.

An event is never changed. A block's is deleted only where the same transaction has written what the
request's blocks came to, and nothing else of the log ever is.
"""

from __future__ import annotations

from billing.triggers import append_only, drop_append_only, drop_refusal

TABLE = "usage_events"
NAME = f"{TABLE}_no_delete"
MESSAGE = f"{TABLE} is append-only"
KEPT = (
    "OLD.kind <> 'block' OR NOT EXISTS"
    " (SELECT 1 FROM compactions WHERE compactions.request_id = OLD.request_id)"
)


def create(dialect: str) -> list[str]:
    """The statements that put this rule in the place of the stricter one."""
    statements = drop_refusal(dialect, NAME, TABLE)
    if dialect == "sqlite":
        return [
            *statements,
            f"CREATE TRIGGER {NAME} BEFORE DELETE ON {TABLE} FOR EACH ROW WHEN ({KEPT}) "
            f"BEGIN SELECT RAISE(ABORT, '{MESSAGE}'); END",
        ]
    return [
        *statements,
        f"CREATE FUNCTION {NAME}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF {KEPT} THEN "
        f"RAISE EXCEPTION '{MESSAGE}' USING ERRCODE = 'integrity_constraint_violation'; "
        "END IF; RETURN OLD; END $$",
        f"CREATE TRIGGER {NAME} BEFORE DELETE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION {NAME}()",
    ]


def drop(dialect: str) -> list[str]:
    """The statements that bring the stricter rule back."""
    return [*drop_append_only(TABLE, dialect), *append_only(TABLE, dialect)]
