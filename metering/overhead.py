"""What the meter takes: microseconds per token of each of its parts, on made-up steps.

The parts are those of the recorder, called as it calls them: the segmenter, the scores (the fold
less the segmenter), the recording (everything before the database, less the fold) and the
attribution of energy, in processor time. Writing durably is measured apart, by the clock on the
wall: it waits for a disk and not for a processor, and it happens behind the next step.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec
from sqlalchemy import Connection, insert
from sqlalchemy import Engine as Database

from engine.records import BlockRecord, RequestWork, StepRecord, Work
from metering import bodies, clock, requests
from metering.bodies import BlockBody
from metering.database import open_database, transaction
from metering.energy import EnergyMeter, Provenance, WindowCloser
from metering.energy.meter import MEASURING_S
from metering.energy.protocols import Reading
from metering.events import EnergyClass, RequestSummary
from metering.protocols import Cover
from metering.recorder.batch import Batch, Surroundings
from metering.recorder.counters import Counts
from metering.recorder.live import LiveRequest, LiveRequests
from metering.request_meter import RequestMeter
from metering.requests import AdmittedRequest
from metering.review_rule import ReviewRule
from metering.semantic import Segmenter
from metering.tables import tenants

VOCAB_SIZE = 49_152
TENANT = "ten_bench"
STEP_NS = 20_000_000
TOKEN_BYTES = 4
REACH_TOKENS = 64  # between two times that the gate has to be asked
TEXT = """\
The meter is read outside of the decode loop. Each step's energy is a difference on one curve, so
whatever parts of time are asked for, they add up to the whole.

- What was computed is charged, and not what was emitted.
- A counter that falls has been reset; e.g. the driver was loaded again at 3.14 s.

```python
def shares(total: int, weights: dict[str, int]) -> dict[str, int]:
    whole = sum(weights.values())
    if not whole:
        return {}
    return {name: total * part // whole for name, part in weights.items()}
```

| part | joules |
|---|---|
| requests | 12.5 |
| idle | 3.1 |

"""


class Load(msgspec.Struct, frozen=True):
    """The steps that are made up."""

    requests: int = 4  # at once, with a block each in every step
    tokens: int = 512  # of each request
    block_tokens: int = 2  # emitted for each request in a step
    batch_steps: int = 5  # recorded at once: a gateway gathers those of a tenth of a second
    repeats: int = 5  # the median of which is reported


class Overhead(msgspec.Struct, frozen=True):
    """Microseconds per token of the meter's parts, and of what is written durably."""

    segmenter_us: float
    confidence_us: float
    recording_us: float
    attribution_us: float
    durable_us: float

    @property
    def meter_us(self) -> float:
        """All parts but the durable write."""
        return self.segmenter_us + self.confidence_us + self.recording_us + self.attribution_us


class OpenGate:
    """Covers everything, but wants to be asked as often as a gate with holds.

    What holds cost is not the meter's; what drawing up a request for the gate costs is.
    """

    def __init__(self) -> None:
        self._reach: dict[str, int] = {}

    def reach(self, connection: Connection, request_ids: Collection[str]) -> dict[str, int]:
        """As far as was said; changes nothing."""
        return {name: self._reach[name] for name in request_ids if name in self._reach}

    def cover(self, connection: Connection, stopped_here: RequestSummary) -> Cover:
        """Say yes, for this and the next tokens."""
        self._reach[stopped_here.request_id] = stopped_here.output_tokens + REACH_TOKENS
        return Cover.COVERED


class SteppedSource:
    """A counter that stands where it is put."""

    at_will = True
    is_counter = False
    power_max_w: float | None = None
    provenance = Provenance(
        energy_class=EnergyClass.ESTIMATED,
        source="bench",
        scope="none",
        devices=("none",),
        uncertainty_pct=None,
    )
    at_ns = 0

    def read(self) -> Reading:
        """One microjoule per microsecond."""
        return Reading(self.at_ns, self.at_ns // 1000, 0)

    def close(self) -> None:
        """Nothing is held."""


def measure(migrate: Callable[[str], object], load: Load, folder: Path | None = None) -> Overhead:
    """Run the load `repeats` times, each on a database that `migrate` makes; the medians."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        url = f"sqlite:///{Path(temporary) / 'bench.db'}"
        migrate(url)
        database = open_database(url)
        try:
            with transaction(database) as connection:
                _add_tenant(connection)
            runs = [_run(database, load, repeat) for repeat in range(load.repeats)]
        finally:
            database.dispose()
    columns = zip(*(msgspec.structs.astuple(run) for run in runs), strict=True)
    return Overhead(*(statistics.median(column) for column in columns))


def sampler_share(meter: EnergyMeter, seconds: float) -> float:
    """The part of one processor that a meter's sampler takes, once periods are measured.

    Starts the meter and closes it. Raises OSError where threads have no clocks of their own.
    """
    before = {thread.ident for thread in threading.enumerate()}
    meter.start()
    try:
        [sampler] = [each for each in threading.enumerate() if each.ident not in before]
        assert sampler.ident is not None, "it has been started"
        cpu_clock = time.pthread_getcpuclockid(sampler.ident)
        time.sleep(MEASURING_S + 0.2)
        wall_ns, cpu_ns = time.monotonic_ns(), time.clock_gettime_ns(cpu_clock)
        time.sleep(seconds)
        used_ns = time.clock_gettime_ns(cpu_clock) - cpu_ns
        return used_ns / (time.monotonic_ns() - wall_ns)
    finally:
        meter.close()


def _run(database: Database, load: Load, repeat: int) -> Overhead:
    admitted = [_admitted(f"req_{repeat}_{number}") for number in range(load.requests)]
    with transaction(database) as connection:
        for each in admitted:
            requests.admit(connection, each)
    steps = list(_steps([each.id for each in admitted], load))
    tokens = load.requests * load.tokens
    work_ns, durable_ns, attribution_ns = _record(database, admitted, steps, load.batch_steps)
    runs = _runs(steps, load.batch_steps)
    segmenter_ns, fold_ns = _segment(runs), _fold(admitted, runs)
    return Overhead(
        segmenter_us=segmenter_ns / tokens / 1000,
        confidence_us=max(0, fold_ns - segmenter_ns) / tokens / 1000,
        recording_us=max(0, work_ns - fold_ns) / tokens / 1000,
        attribution_us=attribution_ns / tokens / 1000,
        durable_us=durable_ns / tokens / 1000,
    )


def _record(
    database: Database,
    admitted: Sequence[AdmittedRequest],
    steps: Sequence[StepRecord],
    batch_steps: int,
) -> tuple[int, int, int]:
    """What working out, writing and attributing take, each summed over all batches."""
    rule, live = ReviewRule(), LiveRequests()
    for each in admitted:
        live.add(LiveRequest(each, RequestMeter(each, rule)))
    source = SteppedSource()
    meter = EnergyMeter(source)
    meter.sample()
    windows = WindowCloser(meter, meter.policy)
    around = Surroundings(
        live=live,
        gate=OpenGate(),
        is_shown=lambda _: False,
        vocab_size=VOCAB_SIZE,
        energy_so_far=lambda _: None,
    )
    work_ns = durable_ns = attribution_ns = 0
    for first in range(0, len(steps), batch_steps):
        batch = Batch(around, steps[first : first + batch_steps])
        began_ns = time.perf_counter_ns()
        with transaction(database) as connection:
            durable_ns += time.perf_counter_ns() - began_ns
            began_ns = time.thread_time_ns()
            batch.work_out(connection)
            work_ns += time.thread_time_ns() - began_ns
            began_ns = time.perf_counter_ns()
            batch.store(connection, Counts())
        durable_ns += time.perf_counter_ns() - began_ns
        for draft in batch.drafts.values():
            draft.live.keep(draft.meter, draft.blocks)
            draft.live.is_running = True
        source.at_ns = batch.pending[-1].end_ns
        meter.sample()
        began_ns = time.thread_time_ns()
        for pending in batch.pending:
            windows.add(pending)
        windows.settle(live.is_metered)
        attribution_ns += time.thread_time_ns() - began_ns
    return work_ns, durable_ns, attribution_ns


def _segment(runs: Sequence[Sequence[BlockBody]]) -> int:
    """What the segmenter takes for the same bytes, a batch's of a request at once."""
    segmenters: dict[str, Segmenter] = {}
    began_ns = time.thread_time_ns()
    for run in runs:
        segmenter = segmenters.get(run[0].request_id)
        if segmenter is None:
            segmenter = segmenters[run[0].request_id] = Segmenter()
        segmenter.feed(b"".join([piece for body in run for piece in body.pieces]))
    return time.thread_time_ns() - began_ns


def _fold(admitted: Sequence[AdmittedRequest], runs: Sequence[Sequence[BlockBody]]) -> int:
    """What folding the same blocks takes, without anything around it."""
    rule = ReviewRule()
    meters = {each.id: RequestMeter(each, rule) for each in admitted}
    began_ns = time.thread_time_ns()
    for run in runs:
        meters[run[0].request_id].fold_blocks(run)
    return time.thread_time_ns() - began_ns


def _runs(steps: Sequence[StepRecord], batch_steps: int) -> list[list[BlockBody]]:
    """The blocks as a recorder folds them: what each batch says of a request."""
    runs: list[list[BlockBody]] = []
    for first in range(0, len(steps), batch_steps):
        said: dict[str, list[BlockBody]] = {}
        for step in steps[first : first + batch_steps]:
            for block in step.blocks:
                body = bodies.block_body(step, block, Work(), VOCAB_SIZE)
                said.setdefault(block.request_id, []).append(body)
        runs += said.values()
    return runs


def _steps(request_ids: Sequence[str], load: Load) -> Iterator[StepRecord]:
    text = TEXT.encode()
    pieces = itertools.cycle(
        text[start : start + TOKEN_BYTES] for start in range(0, len(text), TOKEN_BYTES)
    )
    work = Work(verified_nodes=load.block_tokens + 1, kv_read_tokens=300)
    start_ns = clock.monotonic_ns()
    logprobs = random.Random(0)  # noqa: S311 -- no two scores alike, so that none is remembered
    for index in range(load.tokens // load.block_tokens):
        emitted = tuple(itertools.islice(pieces, load.block_tokens))
        yield StepRecord(
            engine_epoch=request_ids[0],
            step_index=index,
            start_ns=start_ns + index * STEP_NS,
            end_ns=start_ns + (index + 1) * STEP_NS - 1,
            work=tuple(RequestWork(request_id, work) for request_id in request_ids),
            blocks=tuple(
                _block(request_id, index, emitted, -logprobs.random()) for request_id in request_ids
            ),
        )


def _block(request_id: str, index: int, pieces: tuple[bytes, ...], logprob: float) -> BlockRecord:
    count = len(pieces)
    return BlockRecord(
        request_id=request_id,
        block_index=index,
        token_ids=tuple(range(100, 100 + count)),
        pieces=pieces,
        logprobs=(logprob,) * count,
        entropies=(0.5,) * count,
        drafted_nodes=count,
        drafted_depth=count,
        verified_nodes=count + 1,
        accepted_tokens=count - 1,
    )


def _add_tenant(connection: Connection) -> None:
    row = {
        "id": TENANT,
        "name": "bench",
        "currency": "USD",
        "time_zone": "UTC",
        "review_opt_in": False,
        "review_delivery": "now",
        "suspended": False,
        "created_at_us": 0,
    }
    connection.execute(insert(tenants).values(row))


def _admitted(request_id: str) -> AdmittedRequest:
    return AdmittedRequest(
        id=request_id,
        tenant_id=TENANT,
        key_id="key_bench",
        model="bench",
        route="generate",
        tariff_version_id="token/1",
        parameters={},
        prompt="",
        input_tokens=1,
        max_tokens=1,
        max_cost_nano=None,
        end_user=None,
        tags=None,
        test_mode=False,
        started_at_us=clock.now_us(),
    )
