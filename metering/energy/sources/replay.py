"""A recorded trace, played again from the moment it is opened, over and over.

What was measured then was not measured now: whatever the trace is of, its replay is an estimate.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

import msgspec

from metering import clock
from metering.energy import traces
from metering.energy.protocols import Reading
from metering.errors import SourceUnavailable
from metering.events import EnergyClass


class TraceReplay:
    """Plays one trace. Readings carry the times at which they were taken, moved to now."""

    at_will = False
    is_counter = False
    power_max_w: float | None = None  # a jump in it was there when it was recorded

    def __init__(self, path: Path) -> None:
        """Raises InvalidTrace."""
        recorded, self._entries = traces.read(path)
        self._offsets_ns = [entry.offset_ns for entry in self._entries]
        self._origins = 1 + max(entry.origin for entry in self._entries)
        known = [entry for entry in self._entries if entry.own_uj is not None]
        first, last = known[0], known[-1]
        # A trace of one counter goes on from where it ended; any other begins anew.
        self._is_whole = len(known) == len(self._entries) and self._origins == 1
        self._rise_uj = (
            (last.own_uj or 0) - (first.own_uj or 0),
            (last.external_uj or 0) - (first.external_uj or 0),
        )
        self._opened_ns = clock.monotonic_ns()
        self.provenance = msgspec.structs.replace(
            recorded,
            energy_class=EnergyClass.ESTIMATED,
            source=f"replay:{recorded.source}",
            update_period_us=None,
        )

    def read(self) -> Reading:
        """The reading that was last by now; raises SourceUnavailable where there was none."""
        span_ns = self._offsets_ns[-1]
        rounds, offset_ns = divmod(clock.monotonic_ns() - self._opened_ns, span_ns)
        entry = self._entries[bisect_right(self._offsets_ns, offset_ns) - 1]
        if entry.own_uj is None or entry.external_uj is None:
            raise SourceUnavailable("the source did not answer when the trace was recorded")
        at_ns = self._opened_ns + rounds * span_ns + entry.offset_ns
        if not self._is_whole:
            origin = rounds * self._origins + entry.origin
            return Reading(at_ns, entry.own_uj, entry.external_uj, origin)
        own_uj, external_uj = (rounds * rise for rise in self._rise_uj)
        return Reading(at_ns, entry.own_uj + own_uj, entry.external_uj + external_uj)

    def close(self) -> None:
        """Nothing is held."""
