"""The labelled estimate: idle watts x wall time + dynamic watts x CPU time of the engine.

No meter is read. The watts are configured, so the class is `estimated`; against external meters
such estimates were found to be off by up to 40 % (arXiv 2509.22092).
"""

from __future__ import annotations

from metering import clock
from metering.energy.protocols import Reading
from metering.energy.provenance import Provenance
from metering.energy.sources.process_clock import ProcessClock
from metering.events import EnergyClass

UNCERTAINTY_PCT = 40


class CpuTimeEstimate:
    """Estimates the energy of one process."""

    at_will = True
    is_counter = False
    power_max_w: float | None = None  # it rises by what is configured, and never else

    def __init__(self, pid: int, idle_w: float, dynamic_w: float) -> None:
        """Raises SourceUnavailable when the process cannot be observed."""
        self._cpu = ProcessClock(pid)
        self._idle_uw = round(idle_w * 1e6)
        self._dynamic_uw = round(dynamic_w * 1e6)
        self._origin_ns = clock.monotonic_ns()
        self.provenance = Provenance(
            energy_class=EnergyClass.ESTIMATED,
            source="cpu_time",
            scope="process",
            devices=(f"pid:{pid}",),
            uncertainty_pct=UNCERTAINTY_PCT,
        )

    def read(self) -> Reading:
        """Estimate the energy up to now; raises SourceUnavailable once the process is gone."""
        now_ns = clock.monotonic_ns()
        wall_ns = now_ns - self._origin_ns
        energy_uj = (self._idle_uw * wall_ns + self._dynamic_uw * self._cpu.read_ns()) // 10**9
        return Reading(now_ns, energy_uj, 0)

    def close(self) -> None:
        """Let go of the process."""
        self._cpu.close()
