"""The recorder: the engine's observer, between what it did and what is billed or shown.

    on_steps --- one transaction: block events, holds, counters ---> deliver to the streams
        |            energy settles in memory; its events follow within a second
    a finish --- energy settled, or waited for ---> one transaction: terminal event, summary,
                                                    final row, settlement ---> finish the stream

Steps come in on the engine's thread; the closer's thread ends requests. Locks are taken in the
order ending, writer, live requests. What a failed transaction would have written is worked out
and written again; what cannot be written fails its requests aloud.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import structlog
from sqlalchemy import Connection
from sqlalchemy import Engine as Database
from sqlalchemy.exc import SQLAlchemyError

from engine.records import EngineInfo, FinishReason, StepRecord
from metering import clock, event_log, requests
from metering.calibration import Calibration, calibration
from metering.committed_blocks import committed
from metering.database import snapshot, transaction
from metering.energy import EnergyMeter
from metering.errors import UnknownRequest
from metering.protocols import (
    BlockSink,
    BudgetGate,
    RequestCanceller,
    Settler,
)
from metering.recorder import endings
from metering.recorder.batch import Batch, Draft, RequestFault, Surroundings
from metering.recorder.closer import Closer
from metering.recorder.counters import Counts
from metering.recorder.endings import Ending, Withheld
from metering.recorder.energy_books import EnergyBooks
from metering.recorder.live import LiveRequest, LiveRequests
from metering.request_meter import RequestMeter
from metering.requests import AdmittedRequest
from metering.review_rule import ReviewRule

log = structlog.get_logger(__name__)

ATTEMPTS_MAX = 5
RETRY_S = 0.05  # doubled after each attempt
STORAGE_FAULT = "the gateway could not store what was generated"


class Recorder:
    """Makes the engine's facts durable, and ends requests. Methods may be called from any thread.

    Implements `engine.protocols.StepObserver`.
    """

    def __init__(
        self,
        database: Database,
        *,
        settler: Settler,
        gate: BudgetGate,
        sink: BlockSink,
        audit_sample_rate: float = 0.01,
        audit_seed: str = "audit/1",
        energy_wait_s: float = 2.0,
    ) -> None:
        self._database = database
        self._gate = gate
        self._sink = sink
        self._rule = ReviewRule(audit_sample_rate, audit_seed)
        # What admission pins from now on; requests keep the one that they were admitted with.
        self.calibration: Calibration | None = None
        self._energy_wait_s = energy_wait_s
        self._live = LiveRequests()
        self._settler = settler
        self._closer = Closer(database, self._live, settler, sink)
        self._writer = threading.RLock()
        self._canceller: RequestCanceller | None = None
        self._surroundings: Surroundings | None = None
        self._books: EnergyBooks | None = None
        self._last_step: tuple[str, int] = ("", -1)
        self._uncounted = Counts()
        self._failed: list[str] = []  # requests of this batch that the engine must be told of
        self._unknown_records = 0

    def attach(self, canceller: RequestCanceller, meter: EnergyMeter, info: EngineInfo) -> None:
        """Begin to record what this engine does; starts the meter, which is the recorder's now.

        Called again when the engine's process was replaced: the former meter, which may have
        watched that process, is settled and closed.
        """
        with self._writer:
            if self._books is not None:
                self._books.close()
            self._canceller = canceller
            self._books = EnergyBooks(
                self._database, self._live, meter, self._writer, self._settler
            )
            self._surroundings = Surroundings(
                live=self._live,
                gate=self._gate,
                is_shown=self._is_shown,
                vocab_size=info.vocab_size,
                energy_so_far=self._books.so_far,
            )
            meter.start()
            self._closer.start(self._books, self._energy_wait_s)

    def close(self) -> None:
        """Settle what has ended, write what is settled, and stop. The engine is closed before."""
        self._closer.close()
        if self._books is not None:
            self._books.close()
        if self.live_count:
            log.warning("requests.left_open", count=self.live_count)

    @property
    def calibration_id(self) -> str | None:
        """The version that requests are to be admitted with from now on."""
        current = self.calibration
        return None if current is None else current.id

    @property
    def live_count(self) -> int:
        """How many requests are not final."""
        return len(self._live.ids())

    @property
    def live_ids(self) -> tuple[str, ...]:
        """The requests that are not final, whose holds must not expire."""
        return self._live.ids()

    @property
    def unknown_records(self) -> int:
        """Blocks and finishes of requests that were not live here."""
        return self._unknown_records

    def track(self, *admitted: AdmittedRequest) -> None:
        """Follow requests that are about to be submitted together; their rows are committed."""
        for each in admitted:
            meter = RequestMeter(each, self._rule, self._pinned(each))
            self._live.add(LiveRequest(each, meter))
        if self._books is not None:
            self._books.watch()  # so that the idle time before takes no part in what comes

    def cancel(self, request_id: str) -> None:
        """Commit nothing more of a request and tell the engine to stop it. Idempotent.

        It ends as CANCELLED with the blocks committed before, unless those are all of it. One that
        isn't live is left alone.
        """
        self._withhold(request_id, Withheld.CANCELLED)

    def stop(self, request_id: str, detail: str = endings.STOPPED) -> None:
        """As `cancel`, but at our own wish: it ends as FAILED by the operator."""
        self._withhold(request_id, Withheld.STOPPED, detail)

    def refuse(self, request_id: str, detail: str) -> None:
        """End a tracked request that the engine didn't take; it is settled on return.

        Should the database fail, the end is tried again later. Raises UnknownRequest.
        """
        live = self._live.get(request_id)
        if live is None:
            raise UnknownRequest(request_id)
        self._live.end(live, endings.refused(detail), clock.monotonic_ns())
        self._closer.end(live)

    def recover(self) -> int:
        """End every request that a crash left open, as failed by us; returns how many.

        What had been committed is billed, once. An end that fails now is tried again later. Raises
        RuntimeError before `attach`: without its books, none could state that energy is unknown.
        """
        if self._books is None:
            raise RuntimeError("a recorder recovers only after `attach`")
        with snapshot(self._database) as connection:
            orphans = [
                (
                    admitted,
                    event_log.of_request(connection, admitted.id),
                    _calibration_of(connection, admitted.calibration),
                )
                for admitted in requests.live(connection)
                if self._live.get(admitted.id) is None
            ]
        for admitted, events, pinned in orphans:
            meter = RequestMeter(admitted, self._rule, pinned)
            try:
                for body in events:
                    meter.fold(body)
            except ValueError:
                # It must end all the same, or its hold would never be resolved.
                log.exception("request.events_unreadable", request_id=admitted.id)
            live = LiveRequest(admitted, meter, is_orphan=True)
            self._live.add(live)
            self._live.end(live, endings.orphaned(), clock.monotonic_ns())
            self._closer.end(live)
        return len(orphans)

    def on_steps(self, steps: Sequence[StepRecord]) -> None:
        """Record consecutive steps in one transaction, then offer their blocks to the streams.

        Steps seen before change nothing.
        """
        if self._books is None or self._surroundings is None:
            raise RuntimeError("a recorder hears of steps only after `attach`")
        with self._writer:
            fresh = [step for step in steps if self._is_new(step)]
            if not fresh:
                return
            self._books.watch()
            batch = self._commit(self._surroundings, fresh)
            self._last_step = (fresh[-1].engine_epoch, fresh[-1].step_index)
            to_cancel = self._apply(self._books, batch) + self._failed
            self._failed = []
        for request_id in to_cancel:
            self._cancel_in_engine(request_id)
        if any(draft.finish for draft in batch.drafts.values()):
            self._closer.wake()

    def _withhold(self, request_id: str, why: Withheld, detail: str | None = None) -> None:
        live = self._live.get(request_id)
        if live and self._live.withhold(live, why, clock.monotonic_ns(), detail):
            self._cancel_in_engine(request_id)

    def _pinned(self, admitted: AdmittedRequest) -> Calibration | None:
        current = self.calibration
        if current is not None and current.id == admitted.calibration:
            return current
        if admitted.calibration is None:
            return None
        with snapshot(self._database) as connection:  # another came in force since its admission
            return _calibration_of(connection, admitted.calibration)

    def _is_new(self, step: StepRecord) -> bool:
        epoch, index = self._last_step
        return step.engine_epoch != epoch or step.step_index > index

    def _commit(self, surroundings: Surroundings, steps: Sequence[StepRecord]) -> Batch:
        """Write a batch; what cannot be written is withheld, and its requests fail."""
        failures = 0
        while True:
            batch = Batch(surroundings, steps)
            try:
                self._write(batch)
                return batch
            except RequestFault as fault:
                failures += 1
                if not isinstance(fault.cause, SQLAlchemyError) or failures >= ATTEMPTS_MAX:
                    # It must not take the others with it.
                    self._fail(fault.request_id, fault.cause)
                    failures = 0
                    continue
                log.warning("batch.retried", failures=failures, error=str(fault))
            except SQLAlchemyError as error:
                failures += 1
                if failures >= ATTEMPTS_MAX:
                    return self._give_up(surroundings, steps, error)
                log.warning("batch.retried", failures=failures, error=str(error))
            except Exception as error:
                # Not the database's doing, so trying again would not help.
                log.exception("batch.failed")
                return self._give_up(surroundings, steps, error)
            time.sleep(RETRY_S * 2 ** (failures - 1))

    def _write(self, batch: Batch) -> None:
        try:
            with transaction(self._database) as connection:
                batch.write(connection, self._uncounted)
        except BaseException:
            batch.take_back()
            raise
        self._uncounted = Counts()

    def _give_up(
        self, surroundings: Surroundings, steps: Sequence[StepRecord], error: Exception
    ) -> Batch:
        """The database takes nothing: fail the requests of these steps, and owe their counts."""
        for request_id in {block.request_id for step in steps for block in step.blocks}:
            self._fail(request_id, error)
        batch = Batch(surroundings, steps)
        batch.write_nothing()
        self._uncounted = self._uncounted + batch.counts
        return batch

    def _fail(self, request_id: str, error: Exception) -> None:
        log.error("request.failed", request_id=request_id, exc_info=error)
        live = self._live.get(request_id)
        now_ns = clock.monotonic_ns()
        if live and self._live.withhold(live, Withheld.FAULT, now_ns, STORAGE_FAULT):
            self._failed.append(request_id)

    def _apply(self, books: EnergyBooks, batch: Batch) -> list[str]:
        """The batch is durable: make it the requests' state, and offer it to their streams.

        Returns the requests that were cut in it and that the engine doesn't know to be over.
        """
        now_ns = clock.monotonic_ns()
        self._unknown_records += batch.counts.unknown_records
        to_cancel = []
        for request_id, draft in batch.drafts.items():
            live = draft.live
            live.keep(draft.meter, draft.blocks)
            live.is_running = live.is_running or bool(draft.blocks)
            live.charged_until_ns = max(live.charged_until_ns, draft.charged_until_ns)
            live.replaced_tail = live.replaced_tail or draft.replaced_tail
            cut = draft.withheld and self._live.withhold(live, draft.withheld, now_ns)
            if cut and draft.finish is None:
                to_cancel.append(request_id)
        for draft in batch.drafts.values():
            self._deliver(draft)
        books.add(batch.pending)
        for draft in batch.drafts.values():
            if draft.finish is not None:
                self._live.end(draft.live, self._ending(draft), now_ns)
        return to_cancel

    def _ending(self, draft: Draft) -> Ending:
        live, finish = draft.live, draft.finish
        assert finish is not None, "asked only of requests that finished"
        is_whole = finish.block_count == live.meter.blocks
        cuts = {live.withheld, draft.withheld} - {None}
        # Who leaves or stops with the last block in hand has cut nothing off.
        ended_itself = is_whole and finish.reason is not FinishReason.CANCELLED
        is_late = ended_itself and cuts <= {Withheld.CANCELLED, Withheld.STOPPED}
        if live.withheld is not None and not is_late:
            return endings.withheld(live.withheld, live.withheld_detail)
        if not is_whole:
            log.error(
                "request.blocks_missing",
                request_id=finish.request_id,
                emitted=finish.block_count,
                recorded=live.meter.blocks,
            )
            return endings.withheld(Withheld.FAULT, STORAGE_FAULT)
        return endings.finished(finish.reason, finish.detail)

    def _is_shown(self, request_id: str) -> bool:
        try:
            return self._sink.shows_blocks(request_id)
        except Exception:
            log.exception("blocks.audience_unknown", request_id=request_id)
            return False

    def _deliver(self, draft: Draft) -> None:
        request_id = draft.live.admitted.id
        try:
            if draft.effects:
                shown = list(map(committed, draft.blocks, draft.effects))
                self._sink.deliver(request_id, shown)
        except Exception:
            log.exception("blocks.undelivered", request_id=request_id)

    def _cancel_in_engine(self, request_id: str) -> None:
        if self._canceller is None:
            return
        try:
            self._canceller.cancel(request_id)
        except Exception:
            # The engine may be gone; the request ends without its answer then.
            log.exception("engine.cancel_failed", request_id=request_id)


def _calibration_of(connection: Connection, version: str | None) -> Calibration | None:
    return None if version is None else calibration(connection, version)
