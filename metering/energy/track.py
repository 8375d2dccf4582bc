"""One device's counter, followed: its curves, and what of its readings is to be believed.

Energy is known on a curve and nowhere else. A reading that can't follow the one before begins
another curve, of another epoch: the counter fell or was loaded anew, rose by more than the device
can draw, or stood still for longer than any device does. What lies between two curves is never
charged, and never part of a total.
"""

from __future__ import annotations

import statistics

import msgspec
import structlog

from metering.energy.curve import Curve
from metering.energy.protocols import EnergySource, Reading
from metering.energy.provenance import Provenance

log = structlog.get_logger(__name__)

STUCK_NS = 2 * 10**9  # a counter that stands still for so long, or ...
STUCK_PERIODS = 20  # ... for so many of its periods, has stopped counting
UNMEASURED_STUCK_NS = 60 * 10**9  # ... or, as long as nobody knows its period, for so long
LIMITLESS_W = 1_000_000  # of a device that tells no limit; no sum of it leaves 64 bits either
JUMP_MARGIN_PCT = 125  # of the most that the device can draw
JUMP_SLACK_NS = 250_000_000  # a total may have held for so long before it was first seen
GAPS_WANTED = 5  # moves that measure an update period


class Track:
    """Follows one source. Not locked: its meter is."""

    def __init__(self, source: EnergySource) -> None:
        self.source = source
        self.curves: list[Curve] = []  # the last one is being written
        self.lost_periods = 0  # how long to leave a source alone that doesn't answer
        self.lost_since_ns = -1  # and since when it doesn't
        self.retry_at_ns = -1
        self._epochs = 0
        self._last: Reading | None = None
        self._moved: Reading | None = None  # the last to show a new total
        self._before_move_ns = 0  # when the total before that was last seen
        self._still_since_ns: int | None = None
        self._is_stuck = False
        self._gaps_ns: list[int] = []
        self._period_us: int | None = None

    @property
    def provenance(self) -> Provenance:
        """How its figures are had, with the update period that was measured."""
        return msgspec.structs.replace(self.source.provenance, update_period_us=self._period_us)

    @property
    def known_from_ns(self) -> int | None:
        """The first change point that is kept; null before any."""
        return next((curve.start_ns for curve in self.curves if not curve.is_empty), None)

    @property
    def known_until_ns(self) -> int | None:
        """The last change point; null before any."""
        return next((curve.end_ns for curve in reversed(self.curves) if not curve.is_empty), None)

    @property
    def has_period(self) -> bool:
        """Whether its update period has been measured, or needs not be."""
        return not self.source.is_counter or len(self._gaps_ns) >= GAPS_WANTED

    @property
    def is_being_measured(self) -> bool:
        """Whether its moves are still to be seen as they come: its period isn't known for good."""
        return not (self.has_period or self._is_stuck or self.lost_periods)

    def is_silent(self, since_ns: int) -> bool:
        """Whether it has stopped counting, or has not answered since then."""
        return self._is_stuck or bool(self.lost_periods and self.lost_since_ns <= since_ns)

    def settle_period(self) -> None:
        """Take the median gap between the moves so far as the update period, if there are any."""
        if self._gaps_ns:
            self._period_us = round(statistics.median(self._gaps_ns) / 1000)

    def take(self, reading: Reading) -> None:
        """Take the next reading; one that isn't later than the last is left out."""
        last = self._last
        if last is not None and reading.at_ns <= last.at_ns:
            return
        if last is None or (fault := self._fault(last, reading)) is not None:
            if last is not None:
                log.warning(fault, device=self.source.provenance.device)
            self._begin(reading)
        elif reading[1:] != last[1:]:
            self._move(last, reading)
        else:
            self._stand(reading)
        self._last = reading

    def forget_before(self, at_ns: int) -> None:
        """Drop what no stretch from `at_ns` on needs."""
        while len(self.curves) > 1 and (self.curves[0].is_empty or self.curves[0].end_ns <= at_ns):
            del self.curves[0]
        for curve in self.curves:
            curve.forget_before(at_ns)

    def within(self, start_ns: int, end_ns: int) -> list[tuple[int, int, Curve]]:
        """The parts of a stretch that are known, in order, and the curve of each."""
        return [
            (low, high, curve)
            for curve in self.curves
            if not curve.is_empty
            and (low := max(start_ns, curve.start_ns)) < (high := min(end_ns, curve.end_ns))
        ]

    def curve_over(self, start_ns: int, end_ns: int) -> Curve | None:
        """The curve on which all of a stretch is known; null where no single one is."""
        for curve in self.curves:
            if not curve.is_empty and curve.start_ns <= start_ns and end_ns <= curve.end_ns:
                return curve
        return None

    def _fault(self, last: Reading, reading: Reading) -> str | None:
        """What is logged of a reading that can't follow the last one; null where it can."""
        own_uj, external_uj = reading.own_uj - last.own_uj, reading.external_uj - last.external_uj
        if reading.origin != last.origin or own_uj < 0 or external_uj < 0:
            return "energy.counter_reset"
        if own_uj + external_uj == 0:
            return None
        if self._is_stuck:
            return "energy.counter_moves_again"
        most_w = self.source.power_max_w or LIMITLESS_W
        slack_ns = max(JUMP_SLACK_NS, 2000 * (self._period_us or 0))
        elapsed_ns = reading.at_ns - self._before_move_ns + slack_ns
        if own_uj + external_uj > most_w * JUMP_MARGIN_PCT / 100 * elapsed_ns / 1000:
            return "energy.impossible_jump"
        return None

    def _begin(self, reading: Reading) -> None:
        """Begin a curve; of a coarse counter it is not known yet since when this total holds."""
        curve = Curve(self._epochs)
        self._epochs += 1
        self.curves.append(curve)
        self._moved = None
        self._before_move_ns = reading.at_ns
        self._still_since_ns, self._is_stuck = None, False
        if self.source.at_will or not self.source.is_counter:
            curve.add(reading)

    def _move(self, last: Reading, reading: Reading) -> None:
        self.curves[-1].add(reading)
        if self._moved is not None and not self.has_period:
            self._gaps_ns.append(reading.at_ns - self._moved.at_ns)
        self._moved = reading
        self._before_move_ns = last.at_ns
        self._still_since_ns = None

    def _stand(self, reading: Reading) -> None:
        """The total is what it was. A counter that didn't move says nothing by that."""
        if not self.source.is_counter:
            self.curves[-1].add(reading)
            return
        if self._still_since_ns is None:
            self._still_since_ns = reading.at_ns
        if self._period_us is None:
            limit_ns = UNMEASURED_STUCK_NS
        else:
            limit_ns = max(STUCK_NS, STUCK_PERIODS * 1000 * self._period_us)
        if not self._is_stuck and reading.at_ns - self._still_since_ns > limit_ns:
            self._is_stuck = True
            log.warning("energy.counter_stuck", device=self.source.provenance.device)
