"""Requests, steps and stand-ins for what surrounds the recorder, for tests of metering."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection, Engine, insert

from engine.records import (
    BlockRecord,
    EngineInfo,
    FinishReason,
    FinishRecord,
    RequestWork,
    StepRecord,
    Work,
)
from metering import clock
from metering import requests as request_rows
from metering.bodies import Body, TerminalBody
from metering.database import transaction
from metering.energy import EnergyMeter, Policy
from metering.energy.attribution import DEFAULT_POLICY
from metering.energy.protocols import Reading
from metering.energy.provenance import Provenance
from metering.energy.sources import Unmetered
from metering.errors import SourceUnavailable
from metering.events import EnergyClass, EnergySummary, RequestSummary
from metering.protocols import CommittedBlock, Cover
from metering.recorder import Recorder
from metering.request_meter import RequestMeter
from metering.requests import AdmittedRequest
from metering.review_rule import ReviewRule
from metering.tables import tenants

VOCAB_SIZE = 49_152
EPOCH = "engine-1"
INFO = EngineInfo(
    model="tiny",
    checksum="sha256:00",
    architecture="llama",
    vocab_size=VOCAB_SIZE,
    context_length=2048,
    backend="fp32",
    batch_invariant=True,
    device="cpu",
    instruction_set="avx2",
    thread_count=2,
    pid=1,
)


def admitted_request(request_id: str = "req_1", tenant_id: str = "acme") -> AdmittedRequest:
    return AdmittedRequest(
        id=request_id,
        tenant_id=tenant_id,
        key_id="key_1",
        model="tiny",
        route="generate",
        tariff_version_id="token/1",
        parameters={"seed": 7},
        prompt="Say hello.",
        input_tokens=5,
        max_tokens=100,
        max_cost_nano=None,
        end_user=None,
        tags={"team": "blue"},
        test_mode=False,
        started_at_us=1_000_000,
    )


def add_tenant(connection: Connection, tenant_id: str = "acme") -> None:
    connection.execute(
        insert(tenants).values(
            id=tenant_id,
            name=tenant_id.title(),
            currency="USD",
            time_zone="UTC",
            review_opt_in=False,
            review_delivery="now",
            suspended=False,
            created_at_us=0,
        )
    )


def admit(database: Engine, *request_ids: str, tenant_id: str = "acme") -> list[AdmittedRequest]:
    """Insert request rows, as admission does."""
    admitted = [admitted_request(request_id, tenant_id) for request_id in request_ids]
    with transaction(database) as connection:
        for each in admitted:
            request_rows.admit(connection, each)
    return admitted


def block(
    index: int,
    *words: str | bytes,
    request_id: str = "req_1",
    logprob: float = -0.01,
    logprobs: Sequence[float] | None = None,
    accepted: int = 0,
    drafted: int = 0,
    forced: Sequence[int] = (),
) -> BlockRecord:
    """A block of one token for each word; an empty word is an EOS."""
    pieces = tuple(word.encode() if isinstance(word, str) else word for word in words)
    return BlockRecord(
        request_id=request_id,
        block_index=index,
        token_ids=tuple(100 * index + place for place in range(len(pieces))),
        pieces=pieces,
        logprobs=tuple(logprobs) if logprobs is not None else (logprob,) * len(pieces),
        entropies=(0.5,) * len(pieces),
        drafted_nodes=drafted,
        drafted_depth=drafted,
        verified_nodes=drafted + 1,
        accepted_tokens=accepted,
        forced=tuple(forced),
    )


def finish(
    request_id: str = "req_1",
    reason: FinishReason = FinishReason.STOP,
    blocks: int = 1,
    tokens: int = 1,
    detail: str | None = None,
) -> FinishRecord:
    return FinishRecord(request_id, reason, blocks, tokens, detail)


def step(
    index: int,
    *blocks: BlockRecord,
    finishes: Sequence[FinishRecord] = (),
    work: dict[str, Work] | None = None,
    start_ns: int | None = None,
    end_ns: int | None = None,
    epoch: str = EPOCH,
) -> StepRecord:
    """A step that did one node's work for each block's request, ending now unless told."""
    works = (
        work if work is not None else {each.request_id: Work(verified_nodes=1) for each in blocks}
    )
    end_ns = clock.monotonic_ns() if end_ns is None else end_ns
    return StepRecord(
        engine_epoch=epoch,
        step_index=index,
        start_ns=end_ns if start_ns is None else start_ns,
        end_ns=end_ns,
        work=tuple(RequestWork(request_id, each) for request_id, each in works.items()),
        blocks=blocks,
        finishes=tuple(finishes),
    )


@dataclass
class Settlements:
    """Keeps what it is asked to settle; fails as long as `failures` says so."""

    summaries: list[RequestSummary] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    late: dict[str, EnergySummary] = field(default_factory=dict)

    def settle(self, connection: Connection, summary: RequestSummary) -> None:
        left = self.failures.get(summary.request_id, 0)
        if left:
            self.failures[summary.request_id] = left - 1
            raise RuntimeError("no settlement today")
        self.summaries.append(summary)

    def settle_late(self, connection: Connection, request_id: str, energy: EnergySummary) -> None:
        self.late[request_id] = energy


@dataclass
class Gate:
    """Covers up to a number of output tokens for each request."""

    tokens_max: dict[str, int] = field(default_factory=dict)
    short: Cover = Cover.MAX_COST
    seen: list[RequestSummary] = field(default_factory=list)
    fault: Callable[[RequestSummary], None] = lambda summary: None
    reaches: dict[str, int] = field(default_factory=dict)  # tokens for which nobody is asked

    def reach(self, connection: Connection, request_ids: Collection[str]) -> dict[str, int]:
        return {name: most for name, most in self.reaches.items() if name in request_ids}

    def cover(self, connection: Connection, stopped_here: RequestSummary) -> Cover:
        self.seen.append(stopped_here)
        self.fault(stopped_here)
        most = self.tokens_max.get(stopped_here.request_id, 10**9)
        return Cover.COVERED if stopped_here.output_tokens <= most else self.short


class Sink:
    """Keeps what is delivered, and lets a test wait for an end."""

    def __init__(self) -> None:
        self.blocks: list[CommittedBlock] = []
        self.shows = True  # somebody reads the blocks of every request
        self.summaries: dict[str, RequestSummary] = {}
        self.deferred: list[str] = []
        self._changed = threading.Condition()

    def shows_blocks(self, request_id: str) -> bool:
        return self.shows

    def deliver(self, request_id: str, blocks: Sequence[CommittedBlock]) -> None:
        assert {block.request_id for block in blocks} == {request_id}
        self.blocks.extend(blocks)

    def finish(self, summary: RequestSummary) -> None:
        with self._changed:
            self.summaries[summary.request_id] = summary
            self._changed.notify_all()

    def defer(self, request_id: str) -> None:
        self.deferred.append(request_id)

    def wait_for(self, request_id: str, timeout_s: float = 20.0) -> RequestSummary:
        with self._changed:
            assert self._changed.wait_for(lambda: request_id in self.summaries, timeout_s), (
                f"{request_id} did not end"
            )
            return self.summaries[request_id]

    def text(self, request_id: str = "req_1") -> str:
        return "".join(each.text for each in self.blocks if each.request_id == request_id)


@dataclass
class Canceller:
    """Keeps the ids that it is told to cancel."""

    cancelled: list[str] = field(default_factory=list)

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)


class ScriptedSource:
    """A counter that a test moves by hand. Without a reading it is lost."""

    def __init__(
        self,
        *,
        at_will: bool = True,
        energy_class: EnergyClass = EnergyClass.ESTIMATED,
        device: str = "pid:1",
        power_max_w: float | None = None,
    ) -> None:
        self.at_will = at_will
        self.is_counter = not at_will
        self.power_max_w = power_max_w
        self.reading: Reading | None = Reading(0, 0, 0)
        self.provenance = Provenance(
            energy_class=energy_class,
            source="cpu_time",
            scope="process",
            devices=(device,),
            uncertainty_pct=40,
        )
        self.reads = 0
        self.closed = False

    def read(self) -> Reading:
        self.reads += 1
        if self.reading is None:
            raise SourceUnavailable("the script says so")
        return self.reading

    def close(self) -> None:
        self.closed = True


class WattSource(ScriptedSource):
    """A counter that runs at one microjoule per microsecond, that is one watt."""

    def read(self) -> Reading:
        now_ns = clock.monotonic_ns()
        return Reading(now_ns, now_ns // 1000, 0)


def scripted_meter(*sources: ScriptedSource, policy: Policy = DEFAULT_POLICY) -> EnergyMeter:
    """A meter that samples only when it is told to."""
    return EnergyMeter(*sources, period_ms=10_000, policy=policy)


def folded(admitted: AdmittedRequest, events: Sequence[Body], ended_at_us: int) -> RequestSummary:
    """The summary that a request's stored events give, with the output that they state."""
    meter = RequestMeter(admitted, ReviewRule(0.0))
    for body in events:
        meter.fold(body)
    end = events[-1]
    assert isinstance(end, TerminalBody)
    assert meter.output_sha256 == end.output_sha256
    return meter.summary(end, ended_at_us)


def no_meter() -> EnergyMeter:
    return EnergyMeter(Unmetered("not metered in this test"))


@dataclass
class Rig:
    """A recorder and everything around it."""

    database: Engine
    recorder: Recorder
    settlements: Settlements
    gate: Gate
    sink: Sink
    canceller: Canceller

    def track(self, *request_ids: str) -> None:
        """Admit requests and have the recorder follow them."""
        self.recorder.track(*admit(self.database, *request_ids))


@contextmanager
def recorder_rig(
    database: Engine,
    *,
    meter: EnergyMeter | None = None,
    energy_wait_s: float = 2.0,
    audit_sample_rate: float = 0.0,
    with_tenant: bool = True,
) -> Iterator[Rig]:
    """A recorder at work on a database, with a tenant; closed at the end."""
    if with_tenant:
        with transaction(database) as connection:
            add_tenant(connection)
    settlements, gate, sink, canceller = Settlements(), Gate(), Sink(), Canceller()
    recorder = Recorder(
        database,
        settler=settlements,
        gate=gate,
        sink=sink,
        audit_sample_rate=audit_sample_rate,
        energy_wait_s=energy_wait_s,
    )
    recorder.attach(canceller, meter or no_meter(), INFO)
    try:
        yield Rig(database, recorder, settlements, gate, sink, canceller)
    finally:
        recorder.close()
