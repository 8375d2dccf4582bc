"""What a check says: how serious it is, what was found, and what to do about it."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Level(StrEnum):
    """How serious a finding is; only FAIL makes `dflash doctor` exit non-zero."""

    OK = "ok"
    WARN = "warn"  # works, but not as well or not as measured as it could
    FAIL = "fail"  # wrong answers, or none


class Finding(msgspec.Struct, frozen=True):
    """One check's result. `advice` is null when there is nothing to do."""

    check: str
    level: Level
    found: str
    advice: str | None = None


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check, Level.OK, found)


def warn(check: str, found: str, advice: str) -> Finding:
    """It works, with a drawback that nobody would notice."""
    return Finding(check, Level.WARN, found, advice)


def fail(check: str, found: str, advice: str) -> Finding:
    """It will not work, or its results can't be trusted."""
    return Finding(check, Level.FAIL, found, advice)
