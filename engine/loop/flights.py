"""Requests that must get the same tokens, computed once: one sequence, several riders.

Whatever decides a token is the same for all riders of a flight: tenant, prompt, sampling, drafting
and every other field of the request but those that only say where it ends or how it is called. The
longest rider decides how far the sequence goes; each rider's own emission says where its text ends.
A rider that comes late hears at once what was drawn before it came.

The first rider is the *leader*: in its name the sequence runs and counts what it drafts. When it is
gone the next one leads, and the sequence never notices.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import msgspec

from engine.draft.drafter import Drafter, DraftSession
from engine.draft.proposals import LONGEST_MATCH
from engine.loop.emission import Drawn, Emission
from engine.loop.shaping import Shaping
from engine.processors import LogitsProcessor
from engine.records import FinishReason, RequestWork, Work
from engine.requests import GenerationRequest
from engine.scheduler.sequence import Sequence as LiveSequence


@dataclass(slots=True, eq=False)
class Rider:
    """A request between its submission and its finish record."""

    request: GenerationRequest
    emission: Emission
    flight: Flight = field(init=False)
    cancelled: bool = False

    @property
    def ended(self) -> bool:
        """Whether its text has ended, be it told or not."""
        return self.emission.reason is not None

    def overdue(self, now_ns: int) -> FinishReason | None:
        """Return why it must end before its text does; null if nothing says so."""
        if self.cancelled:
            return FinishReason.CANCELLED
        deadline_ns = self.request.deadline_ns
        late = deadline_ns is not None and now_ns >= deadline_ns
        return FinishReason.DEADLINE if late else None


@dataclass(slots=True, eq=False)
class Flight:
    """A sequence and the requests that it runs for; at least one until it is removed."""

    sequence: LiveSequence
    riders: list[Rider]
    processors: tuple[LogitsProcessor, ...]
    may_draft: bool
    identity: Hashable | None  # null where nobody may join
    shaping: Shaping | None = None
    session: DraftSession | None = None  # opened with the first draft
    told: int = 0  # tokens that the session knows
    drawn: list[Drawn] = field(default_factory=list)  # kept where somebody may join

    def __post_init__(self) -> None:
        for rider in self.riders:
            rider.flight = self

    @property
    def leader(self) -> Rider:
        """The rider in whose name the sequence runs."""
        return self.riders[0]

    def join(self, rider: Rider) -> None:
        """Take one more rider, and let it hear what was drawn so far."""
        self.riders.append(rider)
        rider.flight = self
        for drawn in self.drawn:
            if rider.emission.follow(drawn):
                break
        self._lengthen()

    def leave(self, rider: Rider) -> None:
        """Let a rider go; if it led and others are left, the next one leads."""
        self.riders.remove(rider)
        if self.riders:
            self.sequence.request = self.leader.request
            self._lengthen()

    def told_session(self, drafter: Drafter) -> DraftSession:
        """Return the session, told of everything; opens it with the first draft."""
        if self.session is None:
            request = self.sequence.request
            self.session = drafter.open(request.tenant_id, request.prompt_ids, request.draft_scope)
            self.told = len(request.prompt_ids)
        self.tell(drafted=False)
        return self.session

    def recalls(self, drafter: Drafter) -> bool:
        """Whether its text was said before up to here; see `Drafter.recalls`."""
        request = self.sequence.request
        recent = self.sequence.tokens[-LONGEST_MATCH:]
        return drafter.recalls(request.tenant_id, request.draft_scope, recent)

    def tell(self, *, drafted: bool) -> None:
        """Tell the session, if there is one, what was drawn since it was last told."""
        tokens = self.sequence.tokens
        if self.session is not None and self.told < len(tokens):
            self.session.extend(tokens[self.told :], drafted=drafted)
            self.told = len(tokens)

    def work(self, work: Work) -> RequestWork:
        """Say for whom work is done: in the leader's name, and for all."""
        followers = tuple(rider.request.request_id for rider in self.riders[1:])
        return RequestWork(self.leader.request.request_id, work, followers)

    def take(self, drawn: Drawn) -> bool:
        """Tell every rider of a drawn token; returns whether the text has ended for all."""
        if self.identity is not None:
            self.drawn.append(drawn)
        for rider in self.riders:
            if rider.ended:
                continue
            if rider is self.leader:
                rider.emission.take(drawn)
            else:
                rider.emission.follow(drawn)
        return all(rider.ended for rider in self.riders)

    def _lengthen(self) -> None:
        self.sequence.max_tokens = max(rider.request.max_tokens for rider in self.riders)


class Flights:
    """All flights of a loop, by sequence, by what they would give, and their riders by id."""

    def __init__(self) -> None:
        self._riders: dict[str, Rider] = {}
        self._flights: dict[LiveSequence, Flight] = {}
        self._joinable: dict[Hashable, Flight] = {}
        self.unheard: dict[Flight, None] = {}  # somebody has joined whom nothing was told yet

    @property
    def riders(self) -> int:
        """Live requests."""
        return len(self._riders)

    @property
    def following(self) -> int:
        """Live requests that another leads."""
        return len(self._riders) - len(self._flights)

    def rider(self, request_id: str) -> Rider | None:
        """Return a live request; null for any other."""
        return self._riders.get(request_id)

    def of(self, sequence: LiveSequence) -> Flight | None:
        """Return the flight of a sequence; null once all its riders are gone."""
        return self._flights.get(sequence)

    def join(self, same: Hashable | None, rider: Rider) -> bool:
        """Let a request ride along where one that gives the same tokens is live; or say no."""
        flight = None if same is None else self._joinable.get(same)
        if flight is None:
            return False
        flight.join(rider)
        self.unheard[flight] = None
        self._riders[rider.request.request_id] = rider
        return True

    def add(self, flight: Flight) -> None:
        """Take a flight with its first rider."""
        self._riders[flight.leader.request.request_id] = flight.leader
        self._flights[flight.sequence] = flight
        if flight.identity is not None:
            self._joinable[flight.identity] = flight

    def overdue(self, now_ns: int) -> list[tuple[Rider, FinishReason]]:
        """Return whose text must end here, and why."""
        return [
            (rider, reason)
            for rider in self._riders.values()
            if (reason := rider.overdue(now_ns)) is not None
        ]

    def leave(self, rider: Rider) -> bool:
        """Forget a request; returns whether it was its flight's last, which is forgotten too."""
        flight = rider.flight
        del self._riders[rider.request.request_id]
        flight.leave(rider)
        if flight.riders:
            return False
        self.unheard.pop(flight, None)
        del self._flights[flight.sequence]
        if flight.identity is not None:
            del self._joinable[flight.identity]
        return True

    def clear(self) -> list[Rider]:
        """Forget everything; returns who was live."""
        riders = list(self._riders.values())
        for index in (self._riders, self._flights, self._joinable, self.unheard):
            index.clear()
        return riders


def identity(request: GenerationRequest, processors: Sequence[LogitsProcessor]) -> Hashable | None:
    """Return what two requests must share to get the same tokens; null where none may.

    A greedy request's seed and choice are never asked for. User processors may keep state of
    their own.
    """
    if processors:
        return None
    sampling, choice = request.sampling, request.choice
    if sampling.temperature == 0.0:
        sampling, choice = msgspec.structs.replace(sampling, seed=0), 0
    return msgspec.structs.replace(
        request,
        request_id="",
        max_tokens=0,
        sampling=sampling,
        choice=choice,
        stop=(),
        ignore_eos=False,
        deadline_ns=None,
    )
