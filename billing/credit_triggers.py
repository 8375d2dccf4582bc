"""What the database refuses of accounts, grants and budgets, beside `billing.triggers`."""

from __future__ import annotations

from billing.triggers import Refusal, allow, refuse

REFUSALS = (
    Refusal(
        "accounts_only_grow",
        "UPDATE",
        "accounts",
        "what left or reached an account never becomes less",
        "NEW.debits_nano < OLD.debits_nano OR NEW.credits_nano < OLD.credits_nano"
        " OR NEW.id <> OLD.id OR NEW.kind <> OLD.kind OR NEW.currency <> OLD.currency"
        " OR NEW.tenant_id IS DISTINCT FROM OLD.tenant_id",
    ),
    Refusal("accounts_kept", "DELETE", "accounts", "an account is never deleted", None),
    Refusal(
        "grants_terms",
        "UPDATE",
        "grants",
        "the terms of a grant never change",
        "NEW.id <> OLD.id OR NEW.tenant_id <> OLD.tenant_id OR NEW.kind <> OLD.kind"
        " OR NEW.priority <> OLD.priority OR NEW.amount_nano <> OLD.amount_nano"
        " OR NEW.effective_from_us <> OLD.effective_from_us"
        " OR NEW.expires_at_us IS DISTINCT FROM OLD.expires_at_us",
    ),
    Refusal("grants_kept", "DELETE", "grants", "a grant is never deleted", None),
    Refusal(
        "budgets_terms",
        "UPDATE",
        "budgets",
        "the terms of a budget never change: close it and define another",
        "OLD.closed_at_us IS NOT NULL OR NEW.limit_nano <> OLD.limit_nano"
        " OR NEW.kind <> OLD.kind OR NEW.period <> OLD.period OR NEW.scope <> OLD.scope"
        " OR NEW.scope_id IS DISTINCT FROM OLD.scope_id OR NEW.tenant_id <> OLD.tenant_id",
    ),
)


def create(dialect: str) -> list[str]:
    """The statements that create the triggers, for `sqlite` or `postgresql`."""
    return refuse(dialect, REFUSALS)


def drop(dialect: str) -> list[str]:
    """The statements that undo `create`."""
    return allow(dialect, REFUSALS)
