"""The curve E(t) of one device: cumulative energy as a function of time, in integer microjoules.

        own_uj                       Only change points are kept. Between two of them the curve
          |            _.x           is a straight line, floored; before the first and behind
          |      _.-x-'              the last it is not known. Every amount of energy is a
          |   x-'                    difference on this curve, so whatever parts of time are
          +---|-----|----|---- t     asked for, they add up to the whole, exactly.

Counters that fall were reset: what comes after is another curve, of another epoch, and nothing
is ever charged across the gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from metering.energy.protocols import Reading

KNOTS_MAX = 65_536


class Totals(NamedTuple):
    """Cumulative energy at one time."""

    own_uj: int
    external_uj: int


class Curve:
    """One epoch of one device. Not locked: its meter is."""

    __slots__ = ("_at_ns", "_external_uj", "_own_uj", "epoch")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch  # counted from 0 as the device's counter begins anew
        self._at_ns: list[int] = []
        self._own_uj: list[int] = []
        self._external_uj: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Whether no change point is known yet."""
        return not self._at_ns

    @property
    def start_ns(self) -> int:
        """The first change point that is kept."""
        return self._at_ns[0]

    @property
    def end_ns(self) -> int:
        """The last change point: the curve is known up to here."""
        return self._at_ns[-1]

    def add(self, reading: Reading) -> None:
        """Append a later change point. A third point on a level stretch only moves its end."""
        if len(self._at_ns) > 1 and all(
            values[-2] == values[-1] == value
            for values, value in (
                (self._own_uj, reading.own_uj),
                (self._external_uj, reading.external_uj),
            )
        ):
            self._at_ns[-1] = reading.at_ns
            return
        if len(self._at_ns) == KNOTS_MAX:
            self._thin()
        self._at_ns.append(reading.at_ns)
        self._own_uj.append(reading.own_uj)
        self._external_uj.append(reading.external_uj)

    def at(self, at_ns: int) -> Totals:
        """The totals at a time within the curve; raises ValueError outside of it."""
        return Totals(*self.along((at_ns,))[0])

    def along(self, at_ns: Sequence[int]) -> list[tuple[int, int]]:
        """The totals at each of some ascending times, found in one pass, as plain pairs."""
        times, own, external = self._at_ns, self._own_uj, self._external_uj
        if not times[0] <= at_ns[0] <= at_ns[-1] <= times[-1]:
            raise ValueError(f"{at_ns[0]} to {at_ns[-1]} is outside of {times[0]} to {times[-1]}")
        totals: list[tuple[int, int]] = []
        last = len(times) - 1
        right, until_ns = 0, at_ns[0]  # where the straight line ends that a time lies on
        for each_ns in at_ns:
            if each_ns >= until_ns:
                left = bisect_right(times, each_ns, right) - 1
                right = min(left + 1, last)
                from_ns, until_ns = times[left], times[right]
                span_ns = until_ns - from_ns or 1  # behind the last point there is no line
                own_from, external_from = own[left], external[left]
                own_by, external_by = own[right] - own_from, external[right] - external_from
            past_ns = each_ns - from_ns
            totals.append(
                (
                    own_from + own_by * past_ns // span_ns,
                    external_from + external_by * past_ns // span_ns,
                )
            )
        return totals

    def forget_before(self, at_ns: int) -> None:
        """Drop change points that no time from `at_ns` on needs."""
        unneeded = bisect_right(self._at_ns, at_ns) - 1
        if unneeded > 0:
            for values in (self._at_ns, self._own_uj, self._external_uj):
                del values[:unneeded]

    def _thin(self) -> None:
        """Halve the older half: coarser in time, still exact at what remains.

        Only reached when nothing was settled for an hour or so. The first two points stay: what
        was accounted for last ends between them.
        """
        for values in (self._at_ns, self._own_uj, self._external_uj):
            values[2 : KNOTS_MAX // 2] = values[3 : KNOTS_MAX // 2 : 2]
