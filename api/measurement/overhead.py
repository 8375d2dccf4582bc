"""What metering and billing cost the engine: the same work with the books and without, in turns.

One engine process serves both. Bare, a token is seen as soon as its step arrives; with the books it
is seen after admission placed a hold and the step's block, energy and hold were committed. A run is
paired with its neighbour, the first of a pair changes from pair to pair, and every run is a tenant
of its own, so that no cache knows its prompts.
"""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Engine as Database

from api import keys, tenants
from api.admission import Admission, Replay
from api.inference.orders import Order
from api.measurement.audience import Audience, Shown, Switch
from api.migrate import upgrade
from api.roles import Principal, Role
from api.settings import Settings
from billing import catalogue
from billing.gate import HoldGate
from billing.ledger import credits
from billing.money import NANO
from billing.settlement import Settlement
from billing.signing import Signer
from engine.dfm.catalogue import resolve
from engine.process import EngineProcess
from engine.requests import GenerationRequest, SamplingParams
from engine.tokenizer import Tokenizer
from metering import clock
from metering.database import open_database, transaction
from metering.energy import open_meter_of
from metering.recorder import Recorder

GOAL_SHARE = 0.02
GOAL_FIRST_TOKEN_MS = 5.0
TARIFF = "composite"
# The 95th percentile of Student's t, by degrees of freedom from 1.
T95 = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771)
T95_BEYOND = 1.761  # for 14; smaller for more

Submit = Callable[[str, tuple[int, ...]], str]  # (prompt, its ids) to the request's id


@dataclass(frozen=True, slots=True)
class Run:
    """One run's rate, its mean time from the asking to the first token, and what each request took
    of the processors outside of the engine.
    """

    tokens_per_s: float
    first_token_ms: float
    cpu_ms: float


def measure(
    settings: Settings,
    prompts: Sequence[str],
    *,
    concurrency: int,
    max_tokens: int,
    pairs: int,
    database_url: str | None = None,
) -> dict[str, Any]:
    """Run the prompts bare and with the books, pair by pair; the differences and their bounds."""
    path = resolve(settings.home, settings.model)
    tokenizer = Tokenizer.from_dfm(path)
    asked = [
        (prompt, tuple(tokenizer.encode_chat([{"role": "user", "content": prompt}])))
        for prompt in prompts
    ]
    switch = Switch()
    engine = EngineProcess(path, settings.engine_config(), switch)
    with tempfile.TemporaryDirectory() as folder:
        url = database_url or f"sqlite:///{Path(folder) / 'overhead.db'}"
        upgrade(url)
        database = open_database(url)
        engine.start()
        try:
            house = _House(settings, database, engine, switch, Path(folder), max_tokens)
            house.run_bare(asked[:1], 1)  # neither arm pays for what only the first run does
            house.run_metered(asked[:1], 1)
            gc.freeze()  # as a gateway does: no run is to pay for walking what was loaded
            bare: list[Run] = []
            metered: list[Run] = []
            for number in range(pairs):
                turns: list[Callable[[], None]] = [
                    lambda: bare.append(house.run_bare(asked, concurrency)),
                    lambda: metered.append(house.run_metered(asked, concurrency)),
                ]
                for turn in turns if number % 2 == 0 else turns[::-1]:
                    turn()
        finally:
            gc.unfreeze()
            engine.close()
            database.dispose()
    return _figures(bare, metered, concurrency=concurrency, requests=len(asked))


@dataclass
class _House:
    """What both kinds of run are made of."""

    settings: Settings
    database: Database
    engine: EngineProcess
    switch: Switch
    folder: Path
    max_tokens: int
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def run_bare(self, asked: Sequence[tuple[str, tuple[int, ...]]], concurrency: int) -> Run:
        """The engine alone."""
        tenant_id = f"bare_{next(self._numbers)}"
        numbers = itertools.count()

        def submit(_prompt: str, ids: tuple[int, ...]) -> str:
            request_id = f"{tenant_id}_{next(numbers)}"
            self.engine.submit(
                GenerationRequest(
                    request_id=request_id,
                    tenant_id=tenant_id,
                    prompt_ids=ids,
                    max_tokens=self.max_tokens,
                    sampling=SamplingParams(temperature=0.0),
                )
            )
            return request_id

        began_ns = time.process_time_ns()
        rate, wait_ms = self._run(asked, concurrency, submit)
        return Run(rate, wait_ms, _each_ms(began_ns, asked))

    def run_metered(self, asked: Sequence[tuple[str, tuple[int, ...]]], concurrency: int) -> Run:
        """The same with admission, recorder, meter and settlement."""
        principal = self._tenant()
        gate = HoldGate()
        admission = Admission(
            self.database,
            gate,
            10**6,
            self.settings.hold_lifetime_s,
            engine=lambda: self.engine.info,
        )

        def submit(prompt: str, ids: tuple[int, ...]) -> str:
            order = Order(
                route="generate",
                model=self.settings.model,
                prompt={"prompt": prompt},
                input_ids=ids,
                max_tokens=self.max_tokens,
                sampling=SamplingParams(temperature=0.0),
                stop=(),
                draft=True,
                max_cost_nano=None,
                deadline_ms=None,
                end_user=None,
                tags=None,
            )
            admitted = admission.admit(principal, order, None)
            assert not isinstance(admitted, Replay), "no key was given that could be replayed"
            (one,) = admitted
            recorder.track(one.usage)
            self.engine.submit(one.generation)
            return one.usage.id

        with self._recording(gate) as recorder:
            began_ns = time.process_time_ns()
            rate, wait_ms = self._run(asked, concurrency, submit)
        return Run(rate, wait_ms, _each_ms(began_ns, asked))

    @contextmanager
    def _recording(self, gate: HoldGate) -> Iterator[Recorder]:
        """A recorder of its own for one run; on leaving, everything is settled."""
        self.switch.audience = Audience()
        settlement = Settlement(Signer.open(self.folder / "receipt.pem"), self.engine.info)
        recorder = Recorder(
            self.database,
            settler=settlement,
            gate=gate,
            sink=Shown(self.switch.audience),
            audit_sample_rate=self.settings.audit_sample_rate,
        )
        info = self.engine.info
        meter = open_meter_of(info, self.settings.energy_settings())
        recorder.attach(self.engine, meter, info)
        self.switch.observer = recorder
        try:
            yield recorder
        finally:
            self.switch.observer = None
            recorder.close()
            self.switch.audience = Audience()

    def _tenant(self) -> Principal:
        name = f"run {next(self._numbers)}"
        with transaction(self.database) as connection:
            catalogue.install_shipped(connection)
            Signer.open(self.folder / "receipt.pem").register(connection)
            tenant = tenants.create(connection, name=name, currency="USD")
            catalogue.assign(connection, tenant.id, TARIFF, clock.now_us())
            credits.grant(connection, tenant.id, 1000 * NANO, name)
            key = keys.create(connection, tenant_id=tenant.id, role=Role.DEVELOPER, name="overhead")
            found = keys.authenticate(connection, key.secret)
        assert found is not None, "the key was made a moment ago"
        return found

    def _run(
        self, asked: Sequence[tuple[str, tuple[int, ...]]], concurrency: int, submit: Submit
    ) -> tuple[float, float]:
        """Tokens a second, and the mean wait for a first token in milliseconds."""
        audience = self.switch.audience
        asked_ns: dict[str, int] = {}
        began_ns = time.monotonic_ns()
        for place, (prompt, ids) in enumerate(asked):
            audience.wait(place + 1 - concurrency)
            now_ns = time.monotonic_ns()
            asked_ns[submit(prompt, ids)] = now_ns
        audience.wait(len(asked))
        waited_ns = [audience.first_ns[each] - at_ns for each, at_ns in asked_ns.items()]
        rate = audience.tokens * 1e9 / (audience.last_ns - began_ns)
        self.switch.audience = Audience()
        return rate, statistics.mean(waited_ns) / 1e6


def _each_ms(began_ns: int, asked: Sequence[object]) -> float:
    """What this process took of the processors since then, for each request, settled and all."""
    return (time.process_time_ns() - began_ns) / 1e6 / len(asked)


def _figures(
    bare: Sequence[Run], metered: Sequence[Run], *, concurrency: int, requests: int
) -> dict[str, Any]:
    shares = [
        1 - own.tokens_per_s / alone.tokens_per_s for alone, own in zip(bare, metered, strict=True)
    ]
    waits_ms = [
        own.first_token_ms - alone.first_token_ms for alone, own in zip(bare, metered, strict=True)
    ]
    share_max, wait_max_ms = upper_bound(shares), upper_bound(waits_ms)
    return {
        "concurrency": concurrency,
        "requests": requests,
        "pairs": len(bare),
        "bare_tokens_per_s": round(statistics.mean(run.tokens_per_s for run in bare), 1),
        "metered_tokens_per_s": round(statistics.mean(run.tokens_per_s for run in metered), 1),
        "share_lost": round(statistics.mean(shares), 4),
        "share_lost_95_upper": round(share_max, 4),
        "first_token_added_ms": round(statistics.mean(waits_ms), 2),
        "first_token_added_ms_95_upper": round(wait_max_ms, 2),
        "bare_cpu_ms_per_request": round(statistics.median(run.cpu_ms for run in bare), 2),
        "metered_cpu_ms_per_request": round(statistics.median(run.cpu_ms for run in metered), 2),
        "within_goals": share_max <= GOAL_SHARE and wait_max_ms <= GOAL_FIRST_TOKEN_MS,
    }


def upper_bound(differences: Sequence[float]) -> float:
    """Below which the true mean lies with 95 % confidence, by Student's t. Needs two at least."""
    freedom = len(differences) - 1
    quantile = T95[freedom - 1] if freedom <= len(T95) else T95_BEYOND
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return statistics.mean(differences) + quantile * error
