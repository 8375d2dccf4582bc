"""Which of a request's parameters may be content: texts and what holds them. Pure.

Stop strings, a JSON schema and biased tokens tell what was asked or answered. Flags and numbers do
not, nor does why a green request was placed where it was, which is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PLACEMENT = "green"
MAX_ENERGY = "max_energy_uj"  # a request's `max_joules`


def is_content(name: str, value: Any) -> bool:
    """Whether a parameter may tell content; an empty text or list tells nothing."""
    return name != PLACEMENT and bool(value) and not isinstance(value, bool | int | float)


def without_content(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What erasure leaves of a request's parameters."""
    return {name: value for name, value in parameters.items() if not is_content(name, value)}
