"""What the database itself refuses of requests and of what paid for them.

Usage is added up by what was noted at admission: by key, project and end user, route and engine.
Of content and of who it was for, only their erasure is allowed.
"""

from __future__ import annotations

from billing.triggers import Refusal, allow, changes, refuse, rewrites

AT_ADMISSION = (
    *("id", "tenant_id", "key_id", "project_id", "route", "model", "engine", "replica"),
    *("tariff_version_id", "input_tokens", "max_tokens", "max_cost_nano", "tags", "test_mode"),
    "started_at_us",
)
PINNED = ("calibration",)  # since the revision `pinned_calibrations`
ERASABLE = ("prompt", "end_user", "content_salt")
AT_THE_END = ("status", "finish_reason", "ended_at_us")

_FINAL = "OLD.ended_at_us IS NOT NULL"


def terms(*columns: str) -> Refusal:
    """The refusal to change any of these, or to replace content."""
    return Refusal(
        "requests_terms",
        "UPDATE",
        "requests",
        "what a request was admitted with never changes",
        f"{changes(*columns)} OR {rewrites(*ERASABLE)}"
        " OR (NEW.prompt IS NOT NULL AND OLD.parameters <> NEW.parameters)",
    )


FIRST_TERMS = terms(*AT_ADMISSION)  # of the revision `admissions`
TERMS = terms(*AT_ADMISSION, *PINNED)
OTHERS = (
    Refusal(
        "requests_final_once",
        "UPDATE",
        "requests",
        "what a request came to never changes",
        f"{_FINAL} AND ({changes(*AT_THE_END)}"
        " OR (NEW.output IS NOT NULL AND OLD.output IS DISTINCT FROM NEW.output))",
    ),
    Refusal("requests_kept", "DELETE", "requests", "a request is never deleted", None),
    Refusal(
        "fundings_source",
        "UPDATE",
        "fundings",
        "what paid for a request never becomes something else",
        changes("request_id", "source", "position"),
    ),
    Refusal("fundings_kept", "DELETE", "fundings", "what paid for a request is kept", None),
)


def create(dialect: str, first: Refusal = TERMS) -> list[str]:
    """The statements that create the triggers, for `sqlite` or `postgresql`."""
    return refuse(dialect, (first, *OTHERS))


def drop(dialect: str) -> list[str]:
    """The statements that undo `create`."""
    return allow(dialect, (TERMS, *OTHERS))
