"""The gateway without HTTP: engine, recorder and settlement in this process, on a database."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway_process import GatewayHome, make_tenant
from metering_cases import Sink
from sqlalchemy import Engine as Database

from api import keys
from api.admission import Admission, Replay
from api.inference.orders import Order
from api.roles import Principal
from billing.gate import HoldGate
from billing.receipts import Signer
from billing.settlement import Settlement
from engine.config import EngineConfig
from engine.requests import SamplingParams
from engine.service import EngineService
from engine.tokenizer import Tokenizer
from metering.database import open_database, snapshot, transaction
from metering.energy import EnergySettings, open_meter
from metering.recorder import Recorder


@dataclass
class MeteredEngine:
    """Takes orders of one tenant, and waits for what became of them."""

    database: Database
    admission: Admission
    recorder: Recorder
    engine: EngineService
    sink: Sink
    principal: Principal
    tokenizer: Tokenizer

    def start(
        self, prompt: str, max_tokens: int, sampling: SamplingParams, stop: Sequence[str] = ()
    ) -> str:
        """Admit a request and hand it to the engine; returns its id."""
        order = Order(
            route="generate",
            model="tiny",
            prompt={"prompt": prompt},
            input_ids=tuple(self.tokenizer.encode(prompt)),
            max_tokens=max_tokens,
            sampling=sampling,
            stop=tuple(stop),
            draft=True,
            max_cost_nano=None,
            deadline_ms=None,
            end_user=None,
            tags=None,
        )
        admitted = self.admission.admit(self.principal, order, None)
        assert not isinstance(admitted, Replay)
        (one,) = admitted
        self.recorder.track(one.usage)
        self.engine.submit(one.generation)
        return one.usage.id


def books_of_a_tenant(
    home: GatewayHome, tariff: str = "composite"
) -> tuple[Database, Principal, Settlement]:
    """A home's database, with a tenant in credit who asks, and what settles its requests."""
    tenant = make_tenant(home, credit="1000", tariff=tariff)
    database = open_database(home.resolved_database_url)
    signer = Signer.open(home.path / "keys" / "receipt_ed25519.pem")
    with transaction(database) as connection:
        signer.register(connection)
    with snapshot(database) as connection:
        principal = keys.authenticate(connection, tenant.key)
    assert principal is not None
    return database, principal, Settlement(signer)


@contextmanager
def metered_engine(home: GatewayHome, config: EngineConfig) -> Iterator[MeteredEngine]:
    """Serve a home's model until the block ends."""
    database, principal, settlement = books_of_a_tenant(home)
    gate, sink = HoldGate(), Sink()
    recorder = Recorder(database, settler=settlement, gate=gate, sink=sink, energy_wait_s=0.5)
    engine = EngineService(home.model, config, recorder)
    engine.start()
    settlement.engine_info = engine.info
    recorder.attach(engine, open_meter(EnergySettings(), os.getpid()), engine.info)
    try:
        yield MeteredEngine(
            database,
            Admission(
                database,
                gate,
                requests_per_minute=10**6,
                hold_lifetime_s=600,
                engine=lambda: engine.info,
            ),
            recorder,
            engine,
            sink,
            principal,
            Tokenizer.from_dfm(home.model),
        )
    finally:
        engine.close()
        recorder.close()
        database.dispose()


def models_home(path: Path, model: Path) -> GatewayHome:
    """A home whose models folder has `model`, so that receipts find it by name."""
    home = GatewayHome.create(path, model)
    (path / "models").mkdir()
    (path / "models" / model.name).symlink_to(model)
    return home
