"""The absence of a meter: energy is unavailable, which is null and never zero."""

from __future__ import annotations

from metering.energy.protocols import Reading
from metering.energy.provenance import Provenance
from metering.errors import SourceUnavailable
from metering.events import EnergyClass


class Unmetered:
    """Stands where no source answers, so that there is one way through the code."""

    provenance = Provenance(
        energy_class=EnergyClass.UNAVAILABLE,
        source="none",
        scope="none",
        devices=("none",),
        uncertainty_pct=None,
    )
    at_will = False
    is_counter = False
    power_max_w: float | None = None

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def read(self) -> Reading:
        """Raises SourceUnavailable, always."""
        raise SourceUnavailable(self.reason)

    def close(self) -> None:
        """Nothing is held."""
