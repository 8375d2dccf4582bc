"""Numbers on the command line that click's own types would let through."""

from __future__ import annotations

import math
from typing import Any

import click

COUNT_MAX = 10**9  # what a 32-bit column takes, and the API


class FiniteRange(click.FloatRange):
    """A range of floats without "nan", which is below no limit and above none."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Read a number; click says what is wrong with another text."""
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number
