"""The energy of live requests: settled in memory as it becomes known, written once a second.

Energy and the requests that it belongs to are written together with the windows that account for
the meter, or not at all, so the two always add up. What settles after its request ended is
unattributed in the books; the request is told of it, and not charged.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError

from metering import clock
from metering.database import transaction
from metering.energy import EnergyMeter, PendingStep, Provenance, Share, WindowCloser, shown_uj
from metering.energy.windows import Unwritten
from metering.events import EnergySummary
from metering.protocols import Settler
from metering.recorder import energy_writer
from metering.recorder.live import LiveRequest, LiveRequests
from metering.request_meter import RequestMeter

log = structlog.get_logger(__name__)

WRITE_NS = 10**9  # settled energy is written at least this often
AWAITED_MAX = 4096  # requests whose late energy is waited for; the oldest are given up


@dataclass(slots=True)
class Awaited:
    """A request that ended before its energy was known."""

    until_ns: int  # the end of the last step that it took part in
    energy_uj: int  # of what has settled


class EnergyBooks:
    """Who took what of the meter. Takes the writer's lock for whatever changes."""

    def __init__(
        self,
        database: Database,
        live: LiveRequests,
        meter: EnergyMeter,
        writer: threading.RLock,
        settler: Settler,
    ) -> None:
        self._database = database
        self._live = live
        self._meter = meter
        self._writer = writer
        self._settler = settler
        self._windows = WindowCloser(meter, meter.policy)
        self._awaited: dict[str, Awaited] = {}
        self._written_ns = 0
        self._closed = False

    @property
    def provenance(self) -> Provenance:
        """How the figures are had."""
        return self._meter.provenance

    def watch(self) -> None:
        """Something runs: part it from what was before, and settle what can be read at will."""
        self._meter.watch()

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

    def is_silent(self, since_ns: int) -> bool:
        """Whether the meter has been broken since then, so that nobody should wait for it."""
        return self._meter.is_silent(since_ns)

    def so_far(self, meter: RequestMeter) -> EnergySummary | None:
        """The best figure for a request's energy at this moment, written or not."""
        share = self._windows.unwritten.shares.get(meter.admitted.id)
        settled_uj = meter.settled_uj
        if share is not None:
            if share.is_partial or (meter.energy_events and settled_uj is None):
                return None
            settled_uj = (settled_uj or 0) + share.energy_uj
        return None if settled_uj is None else self._summary(settled_uj)

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
        """Write what has settled; raises what the database raises, and keeps it then.

        What is charged for is durable by a later commit, and this with it: it need not wait.
        """
        with self._writer:
            self._written_ns = clock.monotonic_ns()
            unwritten, provenance = self._windows.unwritten, self._meter.provenance
            stated = [
                (live, body)
                for live in self._live.known(unwritten.shares)
                if not live.is_closed
                for body in energy_writer.energy_bodies(
                    live, unwritten.shares[live.admitted.id], provenance, self._meter.policy
                )
            ]
            if stated or unwritten.windows:
                with transaction(self._database, durable=False) as connection:
                    energy_writer.write(connection, unwritten, stated, provenance)
            self._windows.written()
            for live, body in stated:
                live.fold_energy(body)
            self._add_late(unwritten)
            self._settle_late()

    def draw_up(self, live: LiveRequest) -> None:
        """Write what has settled for a request that ends; what settles later comes too late."""
        with self._writer:
            if live.is_closed:
                return
            self.write()
            settled_uj = live.meter.settled_uj if live.meter.energy_events else 0
            is_whole = self.has_settled(live.charged_until_ns)
            self._disown(live, is_whole=is_whole)
            live.is_closed = True
            if settled_uj is not None and not is_whole:
                while len(self._awaited) >= AWAITED_MAX:
                    del self._awaited[next(iter(self._awaited))]
                self._awaited[live.admitted.id] = Awaited(live.charged_until_ns, settled_uj)

    def _disown(self, live: LiveRequest, *, is_whole: bool) -> None:
        """State that a figure which would pass for a request's energy is only a part of it.

        Blocks say by themselves how far energy must reach. Parts of a prompt emit none, and what a
        crash left of them may be less than there was.
        """
        is_whole = is_whole and not (live.is_orphan and not live.meter.blocks)
        if is_whole or live.meter.energy.energy_uj is None:
            return
        until_ns = live.charged_until_ns
        share = Share(0, True, live.meter.energy_through_block, until_ns, until_ns, "")
        provenance, policy = self._meter.provenance, self._meter.policy
        unknown = energy_writer.energy_bodies(live, share, provenance, policy)
        stated = [(live, body) for body in unknown]
        with transaction(self._database, durable=False) as connection:
            energy_writer.write(connection, Unwritten(), stated, provenance)
        for body in unknown:
            live.fold_energy(body)

    def close(self) -> None:
        """Account for everything until now, and let go of the meter."""
        self._closed = True
        try:
            if self._meter.available:
                with self._writer:
                    self._meter.sample_now()
                    self._windows.settle(self._live.is_metered)
                    self._windows.give_up()
                    self._windows.close_idle(clock.monotonic_ns())
                    self.write()
        finally:
            self._meter.close()

    def _add_late(self, unwritten: Unwritten) -> None:
        for request_id, energy_uj in unwritten.late_uj.items():
            if request_id in self._awaited:
                self._awaited[request_id].energy_uj += energy_uj
        for request_id, share in unwritten.shares.items():
            if share.is_partial:
                self._awaited.pop(request_id, None)  # a part of it will never be known

    def _settle_late(self) -> None:
        """State the energy of those whose last step has settled and whose receipt is out."""
        until_ns = self._windows.settled_until_ns
        for request_id, awaited in list(self._awaited.items()):
            if awaited.until_ns > until_ns or self._live.get(request_id) is not None:
                continue
            try:
                with transaction(self._database) as connection:
                    energy = self._summary(awaited.energy_uj)
                    self._settler.settle_late(connection, request_id, energy)
            except SQLAlchemyError as error:
                log.warning("late_energy.retried", request_id=request_id, error=str(error))
                continue
            except Exception:
                log.exception("late_energy.unsettled", request_id=request_id)
            del self._awaited[request_id]

    def _summary(self, energy_uj: int) -> EnergySummary:
        said, policy = self._meter.provenance, self._meter.policy
        return EnergySummary(
            energy_class=said.energy_class,
            energy_uj=energy_uj,
            shown_uj=shown_uj(energy_uj),
            source=said.source,
            scope=said.scope,
            method=policy.method,
            uncertainty_pct=said.uncertainty_pct,
            weights=policy.weights,
            devices=said.devices,
            update_period_us=said.update_period_us,
        )
