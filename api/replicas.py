"""Several engines of one model: each with a recorder, a meter and an admission that are its alone.

They share the database, the gate, the signer and the streams. Where a request runs is decided
before it is admitted, so that its row and its receipt can say why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
from sqlalchemy import Connection

from api.admission import Admission
from api.errors import SharedMeter
from api.inference.orders import Order
from api.protocols import EngineClient
from engine.errors import InvalidRequest
from engine.records import EngineInfo
from metering import queries
from metering.energy import Choice, Efficiency, EnergyMeter
from metering.energy import replicas as ranking
from metering.energy.replicas import Candidate
from metering.events import RequestStatus, RequestSummary
from metering.protocols import BlockSink, CommittedBlock
from metering.recorder import Recorder

RECALLED = 64  # requests of each replica: those before weigh less than a thousandth together


@dataclass(slots=True, eq=False)
class Replica:
    """One engine and what is its alone."""

    name: str
    engine: EngineClient
    recorder: Recorder
    admission: Admission
    efficiency: Efficiency
    max_running: int  # requests that its engine runs at once
    devices: tuple[str, ...] = ()  # that its energy is metered by; none where it is not

    @property
    def candidate(self) -> Candidate:
        """How it stands at this moment, as far as a choice depends on it."""
        live = self.recorder.live_count
        return Candidate(self.name, live, self.max_running, self.efficiency.figure)


@dataclass(frozen=True, slots=True)
class NotingSink:
    """A replica's way to the streams. Implements `metering.protocols.BlockSink`.

    What a completed request took is noted on the way: it is durable by then.
    """

    sink: BlockSink
    efficiency: Efficiency

    def shows_blocks(self, request_id: str) -> bool:
        """Whether anyone reads them as they come."""
        return self.sink.shows_blocks(request_id)

    def deliver(self, request_id: str, blocks: Sequence[CommittedBlock]) -> None:
        """Pass the blocks on."""
        self.sink.deliver(request_id, blocks)

    def finish(self, summary: RequestSummary) -> None:
        """Note what the request took for its tokens, and pass its end on."""
        if summary.status is RequestStatus.COMPLETED:
            self.efficiency.note(summary.energy, summary.output_tokens)
        self.sink.finish(summary)

    def defer(self, request_id: str) -> None:
        """Pass it on."""
        self.sink.defer(request_id)


class Replicas:
    """All replicas of the served model, and the choice among them. Used from any thread."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = tuple(replicas)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._replicas)

    def __len__(self) -> int:
        return len(self._replicas)

    def of(self, name: str) -> Replica:
        """The replica of this name; raises KeyError."""
        for each in self._replicas:
            if each.name == name:
                return each
        raise KeyError(name)

    @property
    def answering(self) -> Replica:
        """The first that takes requests; the first of all while none does."""
        return next((each for each in self._replicas if each.engine.available), self._replicas[0])

    @property
    def live_ids(self) -> tuple[str, ...]:
        """The requests of all replicas that are not final."""
        return tuple(name for each in self._replicas for name in each.recorder.live_ids)

    def place(self, order: Order) -> tuple[Replica, Order]:
        """Where an order is to run, and the order with the reason, if it asked for green energy.

        Raises InvalidRequest for a `max_joules` where it would run unmetered.
        """
        if order.energy is None:
            replica = self.of(ranking.least_loaded(self._candidates()).replica)
        else:
            choice = self.greenest()
            replica = self.of(choice.replica)
            order = replace(order, placement=choice.stated())
        if order.max_energy_uj is not None and not replica.devices:
            raise InvalidRequest("no energy is metered here", "max_joules")
        return replica, order

    def greenest(self) -> Choice:
        """What would be chosen at this moment for a request that asks for green energy."""
        return ranking.green(self._candidates())

    def recall(self, connection: Connection) -> None:
        """Learn anew what tokens took on each replica, from the requests that completed there.

        Only what the same engine took counts: of the same file, on the same device, as wide.
        """
        for each in self._replicas:
            info = msgspec.structs.replace(each.engine.info, pid=0)
            for ran in queries.ran_on(connection, each.name, RECALLED):
                if msgspec.structs.replace(ran.engine, pid=0) == info:
                    each.efficiency.note(ran.energy, ran.output_tokens)

    def attach(self, replica: Replica, meter: EnergyMeter, info: EngineInfo) -> None:
        """Meter a replica's engine, which was started or replaced.

        Raises SharedMeter where another replica is metered by the same device: its counter would
        be divided twice. The meter is closed then.
        """
        devices = meter.provenance.devices if meter.available else ()
        for other in self._replicas:
            shared = set(devices) & set(other.devices)
            if other is not replica and shared:
                meter.close()
                raise SharedMeter(
                    f"replicas {other.name} and {replica.name} would both be metered by "
                    f"{', '.join(sorted(shared))}; give each a source of its own"
                )
        replica.devices = devices
        replica.recorder.attach(replica.engine, meter, info)

    def _candidates(self) -> list[Candidate]:
        """The replicas that take requests; all while none does, so that the engine says why."""
        taking = [each for each in self._replicas if each.engine.available]
        return [each.candidate for each in taking or self._replicas]
