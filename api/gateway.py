"""The running gateway: one database, the replicas of one model, and what connects them.

A request's way: `submit` admits it and hands it to the engine; the engine's steps reach the
recorder, which makes them durable and hands them to `delivery`; the caller reads its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread

import structlog
from sqlalchemy import Connection
from sqlalchemy import Engine as Database

from api import migrate
from api.admission import Admission, Replay
from api.auth import Principal
from api.chores import sweep_chores, usage_chores, webhook_chores
from api.delivery import Delivery, Stream
from api.errors import SchemaMismatch
from api.inference import idempotency
from api.inference.idempotency import IdempotencyKey
from api.inference.orders import Order, ServedModel
from api.payments.cashier import Cashier
from api.payments.opening import open_provider
from api.protocols import EngineClient
from api.replicas import NotingSink, Replica, Replicas
from api.settings import Settings
from api.tenure import Tenure
from billing.catalogue import install_shipped
from billing.gate import HoldGate
from billing.ledger import holds
from billing.settlement import Settlement
from billing.signing import Signer
from dashboards.protocols import EngineState
from engine.config import EngineConfig
from engine.dfm.catalogue import resolve
from engine.errors import EngineError
from engine.grammar.grammars import Grammars
from engine.process import EngineProcess
from engine.records import EngineInfo, EngineStats
from engine.tokenizer import Tokenizer
from metering import calibration
from metering.clock import now_us
from metering.database import open_database, snapshot, transaction
from metering.energy import Efficiency, open_meter_of
from metering.energy import calibration as energy_calibration
from metering.recorder import STOPPED, Recorder

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Live:
    """An order that was submitted, and the stream its choices will arrive on."""

    request_ids: tuple[str, ...]  # one for each choice
    stream: Stream
    held: bool  # the answer may have to wait for a reviewer

    @property
    def request_id(self) -> str:
        """The order's own id: its first choice's."""
        return self.request_ids[0]


class Gateway:
    """Everything behind the routes. `start` and `close` bracket its life."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database: Database = open_database(settings.resolved_database_url)
        model_path = resolve(settings.home, settings.model)
        self.tokenizer = Tokenizer.from_dfm(model_path)
        self.delivery = Delivery()
        self.signer = Signer.open(settings.home / "keys" / "receipt_ed25519.pem")
        self.gate = HoldGate()
        self._settlement = Settlement(
            self.signer,
            review_sla_us=settings.review_sla_hours * 3600 * 10**6,
            second_opinion_rate=settings.second_opinion_rate,
        )
        configured = settings.replica_settings()
        self._metered_by = {name: each.energy for name, each in configured.items()}
        self.replicas = Replicas(
            [self._replica(name, model_path, each.engine) for name, each in configured.items()]
        )
        self.started_at_s = now_us() // 10**6
        self.cashier = Cashier(
            self.database, open_provider(settings), settings.public_url, settings.sweep_interval_s
        )
        self._tenure = Tenure(self.database)
        self._chores = (
            usage_chores(self.database, self._settlement),
            webhook_chores(self.database, allow_private=settings.webhooks_allow_private),
            sweep_chores(
                self.database,
                settings.sweep_interval_s,
                self.signer,
                [self._tenure.keep, self._renew, self._recalibrate],
            ),
        )

    def start(self) -> None:
        """Load the model, resolve what a crash left open, and begin to serve. Blocks.

        Raises AlreadyServed, SchemaMismatch, or an EngineError for a model that can't be loaded.
        """
        self._tenure.take()
        if not (schema := migrate.state(self.database)).is_current:
            raise SchemaMismatch(schema.mismatch)
        with transaction(self.database) as connection:
            install_shipped(connection)
            self.signer.register(connection)
        for replica in self.replicas:
            replica.engine.start()
            self._record_engine(replica.name, replica.engine.info)
        info = self.engine.info
        self.served = ServedModel(
            name=info.model,
            tokenizer=self.tokenizer,
            context_length=info.context_length,
            max_tokens_default=self.settings.max_tokens_default,
            grammars=Grammars(self.tokenizer, guarded=True),
        )
        # By any recorder, and by one: each takes what it doesn't know itself for an orphan.
        recovered = next(iter(self.replicas)).recorder.recover()
        if recovered:
            log.warning("requests.recovered", count=recovered)
        with snapshot(self.database) as connection:
            self.replicas.recall(connection)
        self.cashier.start()
        for chores in self._chores:
            chores.start()
        for replica in self.replicas:
            info = replica.engine.info
            log.info(
                "gateway.started",
                model=info.model,
                replica=replica.name,
                backend=info.backend,
                pid=info.pid,
            )

    def close(self) -> None:
        """Stop the engines, settle what they had in flight, and close the database."""
        self.cashier.close()
        for chores in self._chores:
            chores.close()
        for replica in self.replicas:
            replica.engine.close()
        for replica in self.replicas:
            replica.recorder.close()
        self._tenure.release()
        self.database.dispose()

    @property
    def engine(self) -> EngineClient:
        """One that takes requests, if any does: all of them run the same model."""
        return self.replicas.answering.engine

    def engine_states(self) -> list[EngineState]:
        """What each engine says of itself; without statistics while it doesn't answer."""
        return [
            EngineState(
                replica.name,
                replica.engine.info,
                _stats(replica.engine),
                replica.efficiency.figure,
            )
            for replica in self.replicas
        ]

    async def submit(
        self,
        principal: Principal,
        order: Order,
        key: IdempotencyKey | None,
        *,
        shows_blocks: bool,
    ) -> Live | Replay:
        """Admit an order and start it, to show its blocks as they come or only its end.

        Raises what admission raises, or an EngineError. An order that the engine refuses after
        admission is ended as refused, its hold voided.
        """
        loop = asyncio.get_running_loop()

        def start() -> Live | Replay:
            return self._admit_and_start(principal, order, key, loop, shows_blocks=shows_blocks)

        work = loop.run_in_executor(None, start)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            # The server ends meanwhile; the thread still admits, and what it admits must end.
            work.add_done_callback(self._abandon)
            raise

    async def cancel(self, live: Live) -> None:
        """The client went away: stop, and bill exactly what was committed before."""
        await asyncio.shield(asyncio.to_thread(self._cancel, live.request_ids))

    async def stop(self, live: Live) -> None:
        """We go away: tell who waits, and end it at our expense with what was committed before."""
        await asyncio.shield(asyncio.to_thread(self._stop, live.request_ids))

    def _admit_and_start(
        self,
        principal: Principal,
        order: Order,
        key: IdempotencyKey | None,
        loop: asyncio.AbstractEventLoop,
        *,
        shows_blocks: bool,
    ) -> Live | Replay:
        replica, order = self.replicas.place(order)
        admitted = replica.admission.admit(principal, order, key)
        if isinstance(admitted, Replay):
            return admitted
        request_ids = tuple(each.usage.id for each in admitted)
        replica.recorder.track(*[each.usage for each in admitted])
        stream = self.delivery.open(request_ids, loop, shows_blocks=shows_blocks)
        started: list[str] = []
        try:
            # The first choice goes last: it has the prompt's tokens, and if another one is
            # refused nobody pays for them.
            for each in reversed(admitted):
                replica.engine.submit(each.generation)
                started.append(each.usage.id)
        except Exception as error:
            # Whatever it was, every request must end and its hold with it. A retry under the same
            # key is a new order: this one was never begun, or is cut off here.
            self.delivery.close(request_ids)
            self._stop(started, str(error))
            for request_id in request_ids:
                if request_id not in started:
                    replica.recorder.refuse(request_id, str(error))
            with transaction(self.database) as connection:
                idempotency.release(connection, request_ids[0])
            raise
        return Live(request_ids, stream, held=bool(admitted[0].usage.parameters.get("held")))

    def _cancel(self, request_ids: Sequence[str]) -> None:
        self.delivery.close(request_ids)
        for request_id in request_ids:
            for replica in self.replicas:  # where it isn't live, nothing happens
                replica.recorder.cancel(request_id)

    def _stop(self, request_ids: Sequence[str], detail: str = STOPPED) -> None:
        self.delivery.stop(request_ids)
        for request_id in request_ids:
            for replica in self.replicas:
                replica.recorder.stop(request_id, detail)

    def _replica(self, name: str, model_path: Path, config: EngineConfig) -> Replica:
        efficiency = Efficiency()
        recorder = Recorder(
            self.database,
            settler=self._settlement,
            gate=self.gate,
            sink=NotingSink(self.delivery, efficiency),
            audit_sample_rate=self.settings.audit_sample_rate,
        )
        engine = EngineProcess(
            model_path,
            config,
            recorder,
            on_replaced=partial(self._record_engine, name),
        )
        admission = Admission(
            self.database,
            self.gate,
            self.settings.requests_per_minute,
            self.settings.hold_lifetime_s,
            engine=lambda: engine.info,
            replica=name,
            calibration=lambda: recorder.calibration_id,
        )
        return Replica(name, engine, recorder, admission, efficiency, config.max_running)

    def _record_engine(self, name: str, info: EngineInfo) -> None:
        """Receipts name this engine from now on, and its process is the one that is metered."""
        replica = self.replicas.of(name)
        self._settlement.engine_info = info
        with snapshot(self.database) as connection:
            self._calibrate(connection, replica)
        fitted = energy_calibration.latest(self.settings.home, energy_calibration.Subject.of(info))
        meter = open_meter_of(info, self._metered_by[name], fitted)
        log.info(
            "energy.attributed",
            replica=name,
            method=meter.policy.method,
            weights=meter.policy.weights,
        )
        self.replicas.attach(replica, meter, info)

    def _calibrate(self, connection: Connection, replica: Replica) -> None:
        """Score requests admitted from now on by the calibration in force for this model file."""
        info = replica.engine.info
        found = calibration.in_force(connection, info.model, info.checksum)
        if found != replica.recorder.calibration:
            replica.recorder.calibration = found
            log.info("calibration.loaded", id=found.id if found else None, model=info.model)

    def _abandon(self, work: asyncio.Future[Live | Replay]) -> None:
        if work.exception() is None and isinstance(live := work.result(), Live):
            Thread(target=self._stop, args=(live.request_ids,)).start()

    def _renew(self) -> None:
        """Let no hold of a live request expire."""
        if live := self.replicas.live_ids:
            until_us = now_us() + self.settings.hold_lifetime_s * 10**6
            with transaction(self.database) as connection:
                holds.renew(connection, live, until_us)

    def _recalibrate(self) -> None:
        with snapshot(self.database) as connection:
            for replica in self.replicas:
                self._calibrate(connection, replica)


def _stats(engine: EngineClient) -> EngineStats | None:
    try:
        return engine.stats()
    except EngineError:
        return None
