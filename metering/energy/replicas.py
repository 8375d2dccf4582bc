"""Which replica of a model is the greenest, by what the requests that it settled took. Pure.

A replica's figure is energy per token: the moving average of its requests' energy over that of the
tokens they committed, so it lies between the least and the most that any of them took. Figures are
compared where class, source and scope are the same and each rests on enough requests; a low power
means nothing here, because a device that works alone on one request may take most for its token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum
from threading import Lock
from typing import Any, NamedTuple

from metering.events import EnergyClass, EnergySummary

SAMPLES_MIN = 8  # settled requests that a figure must rest on before it is compared
NEWEST_WEIGHT = 1 / 8  # of the newest request in both averages
# A running batch is joined where its figure is at most so many times the lowest: one request more
# shares the batch's fixed cost, one that starts a batch of its own bears it alone.
JOINED_WITHIN = 1.25
SHOWN_DIGITS = 2  # more would tell a tenant of the requests of others


class Basis(NamedTuple):
    """How energy was had: figures of different ones are never compared."""

    energy_class: EnergyClass
    source: str
    scope: str


class Figure(NamedTuple):
    """What a replica takes for a token, and how many requests say so."""

    basis: Basis
    samples: int
    uj_per_token: float


class Candidate(NamedTuple):
    """A replica that could take a request now."""

    replica: str
    live: int  # requests that it has, running or waiting
    room: int  # requests that it runs at once, at most
    figure: Figure | None = None

    @property
    def has_room(self) -> bool:
        """Whether one more request would run at once."""
        return self.live < self.room

    @property
    def samples(self) -> int:
        """Requests that its figure rests on, as far as they matter."""
        return min(self.figure.samples, SAMPLES_MIN) if self.figure else 0


class Reason(StrEnum):
    """Why a request that asked for green energy went where it went."""

    LOWEST = "lowest"
    LOWEST_WITH_ROOM = "lowest_with_room"  # those below it were full
    RUNNING_BATCH = "running_batch"  # a batch near the lowest figure was joined
    ONLY_ONE = "only_one_replica"
    TOO_FEW = "not_enough_samples"
    NOT_COMPARABLE = "not_comparable"

    @property
    def is_choice(self) -> bool:
        """Whether energy decided."""
        return self in {Reason.LOWEST, Reason.LOWEST_WITH_ROOM, Reason.RUNNING_BATCH}


class Choice(NamedTuple):
    """The replica for a request that asked for green energy, and what it was chosen from."""

    replica: str
    reason: Reason
    candidates: tuple[Candidate, ...]
    compared: tuple[str, ...]  # the replicas whose figures were

    def stated(self) -> dict[str, Any]:
        """The choice as JSON, for the request's record and its receipt."""
        return {
            "replica": self.replica,
            "reason": self.reason.value,
            "candidates": [
                {
                    "replica": each.replica,
                    "joules_per_token": shown(each.figure),
                    "class": each.figure.basis.energy_class.value if each.figure else None,
                    "source": each.figure.basis.source if each.figure else None,
                    "scope": each.figure.basis.scope if each.figure else None,
                    "samples": each.samples,
                    "compared": each.replica in self.compared,
                    "has_room": each.has_room,
                }
                for each in self.candidates
            ],
        }


class Efficiency:
    """A replica's figure, as its requests settle. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._basis: Basis | None = None
        self._samples = 0
        self._energy_uj = 0.0
        self._tokens = 0.0

    @property
    def figure(self) -> Figure | None:
        """What a token takes here; null before the first request of which that is known."""
        with self._lock:
            if self._basis is None:
                return None
            return Figure(self._basis, self._samples, self._energy_uj / self._tokens)

    def note(self, energy: EnergySummary, tokens: int) -> None:
        """Count a settled request; one without tokens, or whose energy is unknown, tells nothing.

        With another class, source or scope the averages begin anew.
        """
        if energy.energy_uj is None or tokens < 1:
            return
        basis = Basis(energy.energy_class, energy.source, energy.scope)
        with self._lock:
            if basis != self._basis:
                self._basis, self._samples = basis, 0
                self._energy_uj = self._tokens = 0.0
            self._samples += 1
            # The first requests weigh the same, so that none of them weighs forever.
            weight = max(NEWEST_WEIGHT, 1 / self._samples)
            self._energy_uj += weight * (energy.energy_uj - self._energy_uj)
            self._tokens += weight * (tokens - self._tokens)


def green(candidates: Sequence[Candidate]) -> Choice:
    """Choose among at least one replica by energy; where it can't decide, by load.

    The same candidates, in whatever order, give the same choice.
    """
    compared = _comparable(candidates)
    names = tuple(sorted(each.replica for each in compared))
    listed = tuple(sorted(candidates))
    if not compared:
        ready = sum(each.samples == SAMPLES_MIN for each in candidates)
        reason = Reason.NOT_COMPARABLE if ready > 1 else Reason.TOO_FEW
        if len(candidates) == 1:
            reason = Reason.ONLY_ONE
        return Choice(least_loaded(candidates).replica, reason, listed, names)
    lowest = min(compared, key=_rank)
    with_room = [each for each in compared if each.has_room]
    best = min(with_room or compared, key=_rank)
    batches = [
        each
        for each in with_room
        if each.live and _uj_per_token(each) <= JOINED_WITHIN * _uj_per_token(best)
    ]
    chosen = min(batches or [best], key=_rank)
    if _uj_per_token(chosen) == _uj_per_token(lowest):
        reason = Reason.LOWEST
    else:
        reason = Reason.LOWEST_WITH_ROOM if chosen is best else Reason.RUNNING_BATCH
    return Choice(chosen.replica, reason, listed, names)


def least_loaded(candidates: Sequence[Candidate]) -> Candidate:
    """The replica with the fewest requests; of equals, one that still needs them for a figure."""
    return min(candidates, key=lambda each: (each.live, each.samples, each.replica))


def by_choice(parameters: Mapping[str, Any]) -> bool:
    """Whether a request, by the parameters that it was admitted with, went where energy decided."""
    stated = parameters.get("green")
    return stated is not None and Reason(stated["reason"]).is_choice


def shown(figure: Figure | None) -> str | None:
    """A figure in joules per token, to so few digits that a tenant may see it."""
    if figure is None:
        return None
    coarse = Decimal(f"{figure.uj_per_token:.{SHOWN_DIGITS - 1}e}")
    return f"{coarse.scaleb(-6):f}" if coarse else "0"


def _comparable(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those whose figures may be compared: measured ones first, then the most of a kind."""
    groups: defaultdict[Basis, list[Candidate]] = defaultdict(list)
    for each in candidates:
        if each.figure is not None and each.samples == SAMPLES_MIN:
            groups[each.figure.basis].append(each)
    kinds = [basis for basis, group in groups.items() if len(group) > 1]
    if not kinds:
        return []
    return groups[min(kinds, key=lambda kind: (_worth(kind), -len(groups[kind]), kind))]


def _worth(basis: Basis) -> bool:
    return basis.energy_class is not EnergyClass.MEASURED


def _uj_per_token(candidate: Candidate) -> float:
    assert candidate.figure is not None
    return candidate.figure.uj_per_token


def _rank(candidate: Candidate) -> tuple[float, str]:
    return _uj_per_token(candidate), candidate.replica
