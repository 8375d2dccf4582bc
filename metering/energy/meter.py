"""The meter: samples one source outside the decode loop and answers what any stretch of time took.

A stretch that no curve covers, because the counter was reset or lost in it, has no known energy.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import structlog
import uuid_utils

from metering.energy.attribution import DEFAULT_COSTS, StepCosts
from metering.energy.curve import Curve
from metering.energy.protocols import EnergySource, Reading
from metering.energy.provenance import Provenance
from metering.errors import SourceUnavailable
from metering.events import EnergyClass

log = structlog.get_logger(__name__)

CLOSE_TIMEOUT_S = 5.0  # a driver that hangs is left behind
RETRY_PERIODS_MAX = 100  # a lost source is asked ever more rarely, at most so many periods apart


class Segment(NamedTuple):
    """A stretch of time within one epoch, half-open, and what it took."""

    epoch: str
    start_ns: int
    end_ns: int
    own_uj: int
    external_uj: int


class EnergyMeter:
    """Follows one source. Every method may be called from any thread."""

    def __init__(
        self, source: EnergySource, *, period_ms: int = 50, costs: StepCosts = DEFAULT_COSTS
    ) -> None:
        self.costs = costs  # by which a step's energy is split
        self._source = source
        self._period_s = period_ms / 1000
        self._lock = threading.Lock()  # of the curves
        self._reading = threading.Lock()  # one reading at a time; a slow driver holds up no curve
        self._id = uuid_utils.uuid7().hex
        self._epochs = 0
        self._curves: list[Curve] = []  # the last one is being written
        self._unchanged: Reading | None = None  # of a coarse counter, until it first moves
        self._lost_periods = 0
        self._closed = False
        self._stopping = threading.Event()
        self._sampler = threading.Thread(target=self._run, name="energy-sampler", daemon=True)

    @property
    def provenance(self) -> Provenance:
        """How the figures of this meter are had."""
        return self._source.provenance

    @property
    def available(self) -> bool:
        """Whether there is a meter at all."""
        return self.provenance.energy_class is not EnergyClass.UNAVAILABLE

    @property
    def at_will(self) -> bool:
        """Whether `sample_now` settles everything up to now."""
        return self._source.at_will

    @property
    def known_until_ns(self) -> int | None:
        """Up to when energy is known; null before the first change point."""
        with self._lock:
            for curve in reversed(self._curves):
                if not curve.is_empty:
                    return curve.end_ns
        return None

    @property
    def known_from_ns(self) -> int | None:
        """From when energy is known; null before the first change point."""
        with self._lock:
            for curve in self._curves:
                if not curve.is_empty:
                    return curve.start_ns
        return None

    def start(self) -> None:
        """Take a first reading and begin to sample."""
        if self.available:
            self.sample()
            self._sampler.start()

    def close(self) -> None:
        """Stop sampling and let go of the source. Idempotent."""
        self._stopping.set()
        if self._sampler.is_alive():
            self._sampler.join(CLOSE_TIMEOUT_S)
        if self._reading.acquire(timeout=CLOSE_TIMEOUT_S):
            with self._lock:
                if not self._closed:
                    self._closed = True
                    self._source.close()
            self._reading.release()

    def sample_now(self) -> None:
        """Take a reading at once, if the source can be read at will; otherwise do nothing."""
        if self.available and self.at_will:
            self.sample()

    def sample(self) -> None:
        """Take a reading. A source that doesn't answer leaves the curve where it is."""
        with self._reading:
            if self._closed:
                return
            try:
                reading = self._source.read()
            except SourceUnavailable as error:
                if not self._lost_periods:
                    log.warning("energy.source_lost", reason=str(error))
                self._lost_periods = min(2 * self._lost_periods + 1, RETRY_PERIODS_MAX)
                return
            self._lost_periods = 0
            with self._lock:
                self._take(reading)

    def segments(self, start_ns: int, end_ns: int) -> list[Segment]:
        """What the stretch `start_ns:end_ns` took, as far as it is known, epoch by epoch.

        The amounts of adjoining stretches add up to those of the whole, exactly.
        """
        with self._lock:
            found = []
            for curve in self._curves:
                if curve.is_empty:
                    continue
                low, high = max(start_ns, curve.start_ns), min(end_ns, curve.end_ns)
                if low < high:
                    before, after = curve.at(low), curve.at(high)
                    own_uj = after.own_uj - before.own_uj
                    external_uj = after.external_uj - before.external_uj
                    found.append(Segment(curve.epoch, low, high, own_uj, external_uj))
            return found

    def forget_before(self, at_ns: int) -> None:
        """Drop what no stretch from `at_ns` on needs."""
        with self._lock:
            while len(self._curves) > 1 and (
                self._curves[0].is_empty or self._curves[0].end_ns <= at_ns
            ):
                del self._curves[0]
            for curve in self._curves:
                curve.forget_before(at_ns)

    def _take(self, reading: Reading) -> None:
        curve = self._curves[-1] if self._curves else None
        if curve is None or not curve.continues(reading):
            if curve is not None:
                log.warning("energy.counter_reset", epoch=curve.epoch)
            curve = Curve(f"{self._id}/{self._epochs}")
            self._epochs += 1
            self._curves.append(curve)
            self._unchanged = None
        if not self._source.at_will:
            before, self._unchanged = self._unchanged, reading
            # Only a total that has just moved says when it held.
            if before is None or before[1:] == reading[1:]:
                return
        curve.add(reading)

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s * max(1, self._lost_periods)):
            self.sample()
