"""The energy of live requests: settled in memory as it becomes known, written once a second.

Energy and the requests that it belongs to are written together with the windows that account for
the meter, or not at all, so the two always add up.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sqlalchemy import Engine as Database

from metering import clock
from metering.database import transaction
from metering.energy import EnergyMeter, PendingStep, Provenance, WindowCloser
from metering.recorder import energy_writer
from metering.recorder.live import LiveRequest, LiveRequests
from metering.request_meter import RequestMeter

WRITE_NS = 10**9  # settled energy is written at least this often


class EnergyBooks:
    """Who took what of the meter. Takes the writer's lock for whatever changes."""

    def __init__(
        self,
        database: Database,
        live: LiveRequests,
        meter: EnergyMeter,
        writer: threading.RLock,
    ) -> None:
        self._database = database
        self._live = live
        self._meter = meter
        self._writer = writer
        self._windows = WindowCloser(meter, meter.costs)
        self._written_ns = 0
        self._closed = False

    @property
    def provenance(self) -> Provenance:
        """How the figures are had."""
        return self._meter.provenance

    def sample(self) -> None:
        """Make everything up to now known, if the meter can be read at will."""
        self._meter.sample_now()

    def add(self, steps: Sequence[PendingStep]) -> None:
        """Take steps that have been committed, and settle what can be."""
        if not self._meter.available:
            return
        with self._writer:
            for step in steps:
                self._windows.add(step)
            self._windows.settle(self._live.is_metered)

    def has_settled(self, until_ns: int) -> bool:
        """Whether all that happened until then is settled, or never will be for want of a meter."""
        with self._writer:
            return not self._meter.available or self._windows.settled_until_ns >= until_ns

    def so_far_uj(self, meter: RequestMeter) -> int | None:
        """The best figure for a request's energy at this moment, written or not."""
        share = self._windows.unwritten.shares.get(meter.admitted.id)
        if share is None:
            return meter.settled_uj
        if share.is_partial or (meter.energy_events and meter.settled_uj is None):
            return None
        return (meter.settled_uj or 0) + share.energy_uj

    def tick(self, now_ns: int, *, is_idle: bool) -> None:
        """Settle what can be and, once a second, write it. `is_idle`: nothing ran until `now_ns`.

        Raises what the database raises; nothing is lost then.
        """
        if not self._meter.available:
            return
        with self._writer:
            if self._closed:
                return
            self._windows.settle(self._live.is_metered)
            if now_ns - self._written_ns < WRITE_NS:
                return
            if is_idle:
                self._meter.sample_now()
                self._windows.close_idle(now_ns)
            self.write()

    def write(self) -> None:
        """Write what has settled; raises what the database raises, and keeps it then."""
        with self._writer:
            self._written_ns = clock.monotonic_ns()
            unwritten, provenance = self._windows.unwritten, self._meter.provenance
            stated = [
                (live, body)
                for live in self._live.known(unwritten.shares)
                if not live.is_closed
                for body in energy_writer.energy_bodies(
                    live, unwritten.shares[live.admitted.id], provenance
                )
            ]
            if not stated and not unwritten.windows:
                return
            with transaction(self._database) as connection:
                energy_writer.write(connection, unwritten, stated, provenance)
            self._windows.written()
            for live, body in stated:
                live.meter.fold_energy(body)

    def draw_up(self, live: LiveRequest) -> None:
        """Write what has settled for a request that ends; what settles later comes too late."""
        with self._writer:
            if not live.is_closed:
                self.write()
                live.is_closed = True

    def close(self) -> None:
        """Account for everything until now, and let go of the meter."""
        self._closed = True
        try:
            if self._meter.available:
                with self._writer:
                    self._meter.sample_now()
                    self._windows.settle(self._live.is_metered)
                    self._windows.close_idle(clock.monotonic_ns())
                    self.write()
        finally:
            self._meter.close()
