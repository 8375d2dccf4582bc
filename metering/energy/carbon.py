"""Carbon, as a view of joules: a grid's intensity, which is configured, times what was metered.

It is on no record and no receipt: nobody measured it, and another intensity gives another figure.
"""

from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal
from typing import NamedTuple

UJ_PER_KWH = 3_600_000_000_000
MICROGRAM = Decimal("0.000001")


class Grid(NamedTuple):
    """Where the electricity comes from."""

    gco2e_per_kwh: Decimal

    def grams(self, energy_uj: int | None) -> str | None:
        """Grams of CO2 equivalent for this energy, to the microgram; null stays null."""
        if energy_uj is None:
            return None
        grams = energy_uj * self.gco2e_per_kwh / UJ_PER_KWH
        return f"{grams.quantize(MICROGRAM, ROUND_HALF_EVEN):f}"
