"""A difference between two figures that should be one."""

from __future__ import annotations

from dataclasses import dataclass

# What is compared, what it should be and what it is.
Figure = tuple[str, object, object]


@dataclass(frozen=True, slots=True)
class Difference:
    """Two figures that should be one. `check` is stable; `subject` says where."""

    check: str
    subject: str
    expected: str
    actual: str
