"""Where the meter's energy went: steps and the idle time between them, without gap or overlap.

    cursor                       step 7              step 8
      |--------- idle ------------|======= split ======|- idle -|=========|
      everything before the       by attribution among
      cursor is accounted for     the requests in it

Whatever the engine and the counter do, each window adds up:
`requests + idle + overhead + external + unattributed == meter`. Nothing here touches a database:
`unwritten` hands out what has come together, `written` says that it is durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import takewhile
from typing import NamedTuple

from metering.energy.attribution import OVERHEAD, Claim, Policy, split
from metering.energy.meter import EnergyMeter, Segment

PENDING_STEPS_MAX = 16_384  # unsettled steps beyond this are given up, oldest first


class PendingStep(NamedTuple):
    """A step that has happened and whose energy isn't known yet."""

    start_ns: int
    end_ns: int
    claims: Sequence[Claim]


@dataclass(slots=True)
class Window:
    """A stretch of one epoch and where its energy went, all in microjoules."""

    epoch: str
    start_ns: int
    end_ns: int
    requests_uj: int = 0
    idle_uj: int = 0
    overhead_uj: int = 0
    external_uj: int = 0
    unattributed_uj: int = 0

    @property
    def meter_uj(self) -> int:
        """What the meter moved by: the sum of the parts."""
        return (
            self.requests_uj
            + self.idle_uj
            + self.overhead_uj
            + self.external_uj
            + self.unattributed_uj
        )


@dataclass(slots=True)
class Share:
    """What one request took since it was last written, and whether some of it can't be known."""

    energy_uj: int
    is_partial: bool
    through_block: int
    start_ns: int
    end_ns: int
    epoch: str


@dataclass(slots=True)
class Unwritten:
    """What has settled since it was last written."""

    windows: list[Window] = field(default_factory=list)
    shares: dict[str, Share] = field(default_factory=dict)
    late_uj: dict[str, int] = field(default_factory=dict)  # unattributed, by whose it had been


class WindowCloser:
    """Accounts for the meter's energy, once and in order. Not locked: its owner is."""

    def __init__(self, meter: EnergyMeter, policy: Policy) -> None:
        self._meter = meter
        self._policy = policy
        self._cursor_ns: int | None = None
        self._idle_until_ns = -1  # the end of the last stretch accounted for as idle
        self._given_up_ns = 0  # time before this isn't idle, though nothing claims it any more
        self._pending: deque[PendingStep] = deque()
        self._unwritten = Unwritten()

    @property
    def settled_until_ns(self) -> int:
        """Steps that ended by then are settled; -1 before any time is."""
        return -1 if self._cursor_ns is None else self._cursor_ns

    @property
    def unwritten(self) -> Unwritten:
        """What has settled since `written` was last called."""
        return self._unwritten

    def written(self) -> None:
        """What `unwritten` held is durable."""
        self._unwritten = Unwritten()

    def add(self, step: PendingStep) -> None:
        """Take the next step; steps come in order of time."""
        if len(self._pending) == PENDING_STEPS_MAX:
            self._give_up()
        self._pending.append(step)

    def give_up(self) -> None:
        """Wait no longer for steps that haven't settled: their meter tells nothing more."""
        while self._pending:
            self._give_up()

    def settle(self, is_open: Callable[[str], bool]) -> None:
        """Account for all steps whose end the meter knows.

        Shares of requests that are no longer open come too late and are unattributed; whose they
        had been is handed out with them.
        """
        known_ns = self._meter.known_until_ns
        due: list[PendingStep] = []
        if known_ns is not None:
            due.extend(takewhile(lambda step: step.end_ns <= known_ns, self._pending))
        if due:
            is_open = cache(is_open)
            for step, before, during in zip(due, *self._stretches(due), strict=True):
                self._pending.popleft()
                self._idle(step.start_ns, before)
                self._step(step, during, is_open)
        if self._cursor_ns is not None:
            self._meter.forget_before(self._cursor_ns)

    def close_idle(self, until_ns: int) -> None:
        """Account for time in which, as the caller knows, no step ran or can still turn up."""
        known_ns = self._meter.known_until_ns
        if not self._pending and known_ns is not None:
            until_ns = min(until_ns, known_ns)
            start_ns = self._begin()
            self._idle(until_ns, self._meter.segments(start_ns, until_ns))
            self._meter.forget_before(until_ns)

    def _stretches(
        self, steps: Sequence[PendingStep]
    ) -> tuple[list[list[Segment]], list[list[Segment]]]:
        """What was taken before each step, from the end of the one before it, and during it.

        Where steps overlap, a stretch belongs to the earlier.
        """
        at_ns = [self._begin()]
        for step in steps:
            at_ns.append(max(step.start_ns, at_ns[-1]))
            at_ns.append(max(step.end_ns, at_ns[-1]))
        stretches = self._meter.along(at_ns)
        return stretches[::2], stretches[1::2]

    def _idle(self, until_ns: int, segments: Sequence[Segment]) -> None:
        """The stretch from the cursor on in which no step ran, and what it took."""
        start_ns = self._begin()
        if until_ns <= start_ns:
            return
        if start_ns < self._given_up_ns:
            boundary_ns = min(self._given_up_ns, until_ns)
            for segment in self._meter.segments(start_ns, boundary_ns):
                window = self._window(segment)
                window.external_uj += segment.external_uj
                window.unattributed_uj += segment.own_uj
            segments = self._meter.segments(boundary_ns, until_ns)
        for segment in segments:
            window = self._window(segment)
            window.external_uj += segment.external_uj
            window.idle_uj += segment.own_uj
        self._cursor_ns = self._idle_until_ns = until_ns

    def _step(
        self, step: PendingStep, segments: Sequence[Segment], is_open: Callable[[str], bool]
    ) -> None:
        """The stretch of a step, less what an overlapping step before it was given."""
        cursor_ns = self._begin()
        start_ns = max(step.start_ns, cursor_ns)
        if step.start_ns == step.end_ns:
            segments, whole = [Segment("", start_ns, start_ns, 0, 0)], True
        else:
            whole = (
                len(segments) == 1
                and segments[0].start_ns == start_ns
                and segments[0].end_ns == step.end_ns
            )
        known = whole and step.start_ns >= self._idle_until_ns
        for segment in segments:
            window = self._window(segment)
            window.external_uj += segment.external_uj
            if known:
                self._share(step, segment, window, is_open)
            else:
                window.unattributed_uj += segment.own_uj
        if not known:
            self._forfeit(step)
        self._cursor_ns = max(cursor_ns, step.end_ns)

    def _share(
        self,
        step: PendingStep,
        segment: Segment,
        window: Window,
        is_open: Callable[[str], bool],
    ) -> None:
        shares = split(segment.own_uj, step.claims, self._policy)
        window.overhead_uj += shares.pop(OVERHEAD, 0)
        for claim in step.claims:
            energy_uj = shares.pop(claim.request_id, 0)
            if is_open(claim.request_id) and claim.charged:
                window.requests_uj += energy_uj
                self._book(claim, step, energy_uj, segment.epoch)
            else:
                window.unattributed_uj += energy_uj
                if claim.charged:
                    late_uj = self._unwritten.late_uj
                    late_uj[claim.request_id] = late_uj.get(claim.request_id, 0) + energy_uj

    def _give_up(self) -> None:
        lost = self._pending.popleft()
        self._given_up_ns = lost.end_ns
        self._forfeit(lost)

    def _forfeit(self, step: PendingStep) -> None:
        """The step's energy will never be known, nor will that of the requests in it."""
        for claim in step.claims:
            if claim.charged:
                self._book(claim, step, None, "")

    def _book(self, claim: Claim, step: PendingStep, energy_uj: int | None, epoch: str) -> None:
        share = self._unwritten.shares.get(claim.request_id)
        if share is None:
            share = Share(0, False, -1, step.start_ns, step.end_ns, epoch)
            self._unwritten.shares[claim.request_id] = share
        share.energy_uj += energy_uj or 0
        share.is_partial = share.is_partial or energy_uj is None
        share.through_block = max(share.through_block, claim.through_block)
        share.end_ns = step.end_ns
        share.epoch = epoch

    def _begin(self) -> int:
        """The cursor, which starts where the meter does; not asked while that knows nothing."""
        if self._cursor_ns is None:
            self._cursor_ns = self._meter.known_from_ns
        assert self._cursor_ns is not None, "it is asked once something is known"
        return self._cursor_ns

    def _window(self, segment: Segment) -> Window:
        """The unwritten window that a segment extends: one for each epoch."""
        windows = self._unwritten.windows
        if segment.start_ns == segment.end_ns:
            return Window(segment.epoch, segment.start_ns, segment.end_ns)  # of no time
        if not windows or windows[-1].epoch != segment.epoch:
            windows.append(Window(segment.epoch, segment.start_ns, segment.end_ns))
        windows[-1].end_ns = segment.end_ns
        return windows[-1]
