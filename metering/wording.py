"""Counts in words, one way everywhere: "1 request", "2 requests", "0.5 joules"."""

from __future__ import annotations

from decimal import Decimal


def unit_of(count: Decimal | int | str, units: str) -> str:
    """The word for so many: `units` is a plural such as "output_tokens", its last letter an s."""
    words = units.replace("_", " ")
    return words.removesuffix("s") if abs(Decimal(count)) == 1 else words


def counted(count: Decimal | int | str, units: str) -> str:
    """A count with its word."""
    return f"{count} {unit_of(count, units)}"
