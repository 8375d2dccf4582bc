"""The meter: samples its sources outside the decode loop and answers what any stretch took.

A stretch that no curve covers, because a counter was reset or lost in it, has no known energy.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import structlog
import uuid_utils

from metering import clock
from metering.energy.attribution import DEFAULT_POLICY, Policy
from metering.energy.curve import Curve
from metering.energy.protocols import EnergySource
from metering.energy.provenance import Provenance, together
from metering.energy.track import Track
from metering.errors import SourceUnavailable
from metering.events import EnergyClass

log = structlog.get_logger(__name__)

CLOSE_TIMEOUT_S = 5.0  # a driver that hangs is left behind
RETRY_PERIODS_MAX = 100  # a lost source is asked ever more rarely, at most so many periods apart
MEASURING_S = 1.0  # how long update periods are looked for this often:
MEASURING_POLL_S = 0.001  # those of slower counters, as often as while something runs
IDLE_S = 1.0  # between two readings while nothing runs, or of what is read at steps anyway
WATCHED_NS = 3 * 10**9  # for how long a counter is read often after something ran
PERIOD_S_MIN = 0.02  # sampling faster than that would cost more than it tells


class Segment(msgspec.Struct, frozen=True, gc=False):
    """A stretch of time within one epoch, half-open, and what it took."""

    epoch: str
    start_ns: int
    end_ns: int
    own_uj: int
    external_uj: int


class EnergyMeter:
    """Follows one source, or one for each device of a group. Methods may be called by any thread.

    The energy of a group is the sum of its devices' curves, where all of them are known: a total
    without one of them is no total.
    """

    def __init__(
        self,
        *sources: EnergySource,
        period_ms: int = 50,
        policy: Policy = DEFAULT_POLICY,
    ) -> None:
        self.policy = policy  # by which a step's energy is split
        self._tracks = [Track(source) for source in sources]
        self._period_s = period_ms / 1000
        self._lock = threading.Lock()  # of the tracks
        self._reading = threading.Lock()  # one reading at a time; a slow driver holds up no curve
        self._id = uuid_utils.uuid7().hex
        self._epochs: dict[tuple[int, ...], str] = {}  # names, by the curves' numbers
        self._provenance = together(tuple(track.provenance for track in self._tracks))
        self._closed = False
        self._stopping = threading.Event()
        self._watched_until_ns = -1
        self._wake = threading.Event()  # a counter is to be read often again
        self._sampler = threading.Thread(target=self._run, name="energy-sampler", daemon=True)

    @property
    def provenance(self) -> Provenance:
        """How the figures of this meter are had."""
        return self._provenance

    @property
    def available(self) -> bool:
        """Whether there is a meter at all."""
        return self.provenance.energy_class is not EnergyClass.UNAVAILABLE

    @property
    def at_will(self) -> bool:
        """Whether `sample_now` settles everything up to now."""
        return all(track.source.at_will for track in self._tracks)

    @property
    def known_until_ns(self) -> int | None:
        """Up to when energy is known; null before the first change point of each device."""
        with self._lock:
            ends = [track.known_until_ns for track in self._tracks]
        return None if None in ends else min(end for end in ends if end is not None)

    @property
    def known_from_ns(self) -> int | None:
        """From when energy is known; null before the first change point of each device."""
        with self._lock:
            starts = [track.known_from_ns for track in self._tracks]
        return None if None in starts else max(start for start in starts if start is not None)

    def is_silent(self, since_ns: int) -> bool:
        """Whether a source has stopped counting, or has not answered since then."""
        with self._lock:
            return any(track.is_silent(since_ns) for track in self._tracks)

    def start(self) -> None:
        """Take a first reading and begin to sample."""
        if self.available:
            self.sample()
            self._sampler.start()

    def close(self) -> None:
        """Stop sampling and let go of the sources. Idempotent."""
        self._stopping.set()
        self._wake.set()
        if self._sampler.is_alive():
            self._sampler.join(CLOSE_TIMEOUT_S)
        if self._reading.acquire(timeout=CLOSE_TIMEOUT_S):
            with self._lock:
                if not self._closed:
                    self._closed = True
                    for track in self._tracks:
                        track.source.close()
            self._reading.release()

    def sample_now(self) -> None:
        """Take a reading at once, if all can be read at will; otherwise do nothing."""
        if self.available and self.at_will:
            self.sample()

    def watch(self) -> None:
        """Something is about to run, or has run: take a reading that parts it from what was before.

        What can be read at will is read. A counter is read as often as it moves for a while, and at
        once if it was not.
        """
        if self.at_will:
            self.sample_now()
            return
        now_ns = clock.monotonic_ns()
        was_watched = now_ns < self._watched_until_ns
        self._watched_until_ns = now_ns + WATCHED_NS
        if self.available and not was_watched:
            self.sample()
            self._wake.set()

    def sample(self, *, only_due: bool = False) -> None:
        """Take a reading of each source. One that doesn't answer leaves its curve where it is.

        `only_due` leaves out those that didn't answer a short while ago.
        """
        with self._reading:
            now_ns = clock.monotonic_ns()
            for track in self._tracks:
                if not self._closed and (not only_due or track.retry_at_ns <= now_ns):
                    self._sample(track, now_ns)

    def segments(self, start_ns: int, end_ns: int) -> list[Segment]:
        """What the stretch `start_ns:end_ns` took, as far as it is known, epoch by epoch.

        The amounts of adjoining stretches add up to those of the whole, exactly.
        """
        with self._lock:
            return self._segments(start_ns, end_ns)

    def along(self, at_ns: Sequence[int]) -> list[list[Segment]]:
        """What each stretch between two of these ascending times took: `segments` of each."""
        with self._lock:
            curves = [track.curve_over(at_ns[0], at_ns[-1]) for track in self._tracks]
            if None in curves:
                return [self._segments(*stretch) for stretch in pairwise(at_ns)]
            return self._along(at_ns, [curve for curve in curves if curve is not None])

    def forget_before(self, at_ns: int) -> None:
        """Drop what no stretch from `at_ns` on needs."""
        with self._lock:
            for track in self._tracks:
                track.forget_before(at_ns)

    def _segments(self, start_ns: int, end_ns: int) -> list[Segment]:
        first, *others = self._tracks
        stretches: list[tuple[int, int, tuple[Curve, ...]]] = [
            (low, high, (curve,)) for low, high, curve in first.within(start_ns, end_ns)
        ]
        for track in others:
            stretches = [
                (low, high, (*curves, curve))
                for start, end, curves in stretches
                for low, high, curve in track.within(start, end)
            ]
        return [
            segment
            for low, high, curves in stretches
            for [segment] in self._along((low, high), curves)
        ]

    def _along(self, at_ns: Sequence[int], curves: Sequence[Curve]) -> list[list[Segment]]:
        """One segment for each stretch between two times, none where they are the same."""
        totals = curves[0].along(at_ns)
        for curve in curves[1:]:
            totals = [
                (one[0] + other[0], one[1] + other[1])
                for one, other in zip(totals, curve.along(at_ns), strict=True)
            ]
        epoch = self._epoch(curves)
        stretches = zip(pairwise(at_ns), pairwise(totals), strict=True)
        return [
            [Segment(epoch, low, high, after[0] - before[0], after[1] - before[1])]
            if low < high
            else []
            for (low, high), (before, after) in stretches
        ]

    def _epoch(self, curves: Sequence[Curve]) -> str:
        numbers = tuple([curve.epoch for curve in curves])
        epoch = self._epochs.get(numbers)
        if epoch is None:
            epoch = self._epochs[numbers] = f"{self._id}/{'-'.join(map(str, numbers))}"
        return epoch

    def _sample(self, track: Track, now_ns: int) -> None:
        try:
            reading = track.source.read()
        except Exception as error:
            # A fault of a driver's binding is as good as no answer: it must stop neither the
            # sampler nor the recording of what the engine did.
            if not track.lost_periods:
                track.lost_since_ns = now_ns
                fault = None if isinstance(error, SourceUnavailable) else error
                log.warning("energy.source_lost", reason=str(error), exc_info=fault)
            track.lost_periods = min(2 * track.lost_periods + 1, RETRY_PERIODS_MAX)
            track.retry_at_ns = now_ns + round(track.lost_periods * self._period_s * 1e9)
            return
        track.lost_periods = 0
        with self._lock:
            track.take(reading)

    def _run(self) -> None:
        self._measure_periods()
        while not self._stopping.is_set():
            measuring = any(track.is_being_measured for track in self._tracks)
            if measuring or clock.monotonic_ns() < self._watched_until_ns:
                self._stopping.wait(self._period_s)
            else:
                self._wake.wait(max(IDLE_S, self._period_s))
                self._wake.clear()
            if not self._stopping.is_set():
                self.sample(only_due=True)
                if measuring:
                    self._settle_periods()

    def _measure_periods(self) -> None:
        """Find out how often the counters move, within reason.

        What can be read at will is read whenever a request arrives or a step has ended.
        """
        until_ns = clock.monotonic_ns() + round(MEASURING_S * 1e9)
        while (
            not all(track.has_period for track in self._tracks)
            and clock.monotonic_ns() < until_ns
            and not self._stopping.wait(MEASURING_POLL_S)
        ):
            self.sample(only_due=True)
        self._settle_periods()

    def _settle_periods(self) -> None:
        """Take over what is known of the periods so far, and sample twice as often."""
        before_us = self._provenance.update_period_us
        with self._lock:
            for track in self._tracks:
                track.settle_period()
            self._provenance = together(tuple(track.provenance for track in self._tracks))
        period_us = self._provenance.update_period_us
        if period_us is not None and period_us != before_us:
            log.info("energy.period_measured", update_period_us=period_us)
            if not self.at_will:
                self._period_s = min(self._period_s, max(PERIOD_S_MIN, period_us / 2e6))
