"""Several in-process engines of one model, each metered by a trace of its own, on one database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway_process import GatewayHome
from metered_engine import books_of_a_tenant
from metering_cases import Sink
from sqlalchemy import Engine as Database

from api.admission import Admission, Replay
from api.inference.orders import Order
from api.replicas import NotingSink, Replica, Replicas
from api.roles import Principal
from billing.gate import HoldGate
from engine.config import EngineConfig
from engine.requests import SamplingParams
from engine.service import EngineService
from engine.tokenizer import Tokenizer
from metering.energy import Efficiency, EnergySettings, open_meter
from metering.recorder import Recorder

CONFIG = EngineConfig(kv_tokens=2048, threads=1, max_running=4, draft=False)


@dataclass
class MeteredReplicas:
    """Takes orders of one tenant, and waits for what became of them."""

    database: Database
    replicas: Replicas
    sink: Sink
    principal: Principal
    tokenizer: Tokenizer

    def start(
        self, prompt: str, *, green: bool = False, max_tokens: int = 12, max_uj: int | None = None
    ) -> tuple[str, str]:
        """Place, admit and begin a request; returns its id and its replica's name."""
        order = Order(
            route="generate",
            model="tiny",
            prompt={"prompt": prompt},
            input_ids=tuple(self.tokenizer.encode(prompt)),
            max_tokens=max_tokens,
            sampling=SamplingParams(temperature=1.0, seed=len(self.sink.summaries)),
            stop=(),
            draft=False,
            max_cost_nano=None,
            deadline_ms=None,
            end_user=None,
            tags=None,
            energy="green" if green else None,
            max_energy_uj=max_uj,
        )
        replica, order = self.replicas.place(order)
        admitted = replica.admission.admit(self.principal, order, None)
        assert not isinstance(admitted, Replay)
        (one,) = admitted
        replica.recorder.track(one.usage)
        replica.engine.submit(one.generation)
        return one.usage.id, replica.name


@contextmanager
def metered_replicas(home: GatewayHome, traces: Mapping[str, Path]) -> Iterator[MeteredReplicas]:
    """Serve a home's model by one engine for each trace, until the block ends."""
    database, principal, settlement = books_of_a_tenant(home, tariff="energy")
    gate, sink = HoldGate(), Sink()

    def replica(name: str) -> Replica:
        efficiency = Efficiency()
        recorder = Recorder(
            database,
            settler=settlement,
            gate=gate,
            sink=NotingSink(sink, efficiency),
            audit_sample_rate=0,
        )
        engine = EngineService(home.model, CONFIG, recorder)
        admission = Admission(database, gate, 10**6, 600, engine=lambda: engine.info, replica=name)
        return Replica(name, engine, recorder, admission, efficiency, CONFIG.max_running)

    replicas = Replicas([replica(name) for name in traces])
    for each in replicas:
        each.engine.start()
        settings = EnergySettings(source="replay", replay_trace=str(traces[each.name]))
        replicas.attach(each, open_meter(settings, each.engine.info.pid), each.engine.info)
    try:
        yield MeteredReplicas(database, replicas, sink, principal, Tokenizer.from_dfm(home.model))
    finally:
        for each in replicas:
            each.engine.close()
        for each in replicas:
            each.recorder.close()
        database.dispose()
