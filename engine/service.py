"""The engine in this process: a thread that steps, and a door that any thread may use."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Condition, Event, Thread

import msgspec
import structlog

from engine.config import EngineConfig
from engine.delivery import StepDelivery
from engine.errors import EngineError, EngineOverloaded, EngineUnavailable, InvalidRequest
from engine.loop.decoding import DecodeLoop
from engine.opening import open_model
from engine.processors import LogitsProcessor
from engine.protocols import StepObserver
from engine.records import EngineInfo, EngineStats, FinishReason, FinishRecord, StepRecord
from engine.requests import GenerationRequest
from engine.scheduler.admission import Limits

log = structlog.get_logger(__name__)

GATHER_S = 0.1  # how long steps that nobody waits for are gathered: a tick of a fluent stream


class EngineService:
    """Runs one model. Every request that `submit` takes ends in exactly one finish record."""

    def __init__(
        self,
        model_path: Path | str,
        config: EngineConfig,
        observer: StepObserver,
        *,
        on_failure: Callable[[], None] | None = None,
    ) -> None:
        """`on_failure` is called, on some thread, when the engine can't go on; see `close`."""
        self.engine_epoch = uuid.uuid4().hex
        self._model_path = Path(model_path)
        self._config = config
        self._on_failure = on_failure
        self._delivery = StepDelivery(observer, on_failure=self._undeliverable, gather_s=GATHER_S)
        self._changed = Condition()
        self._inbox: deque[tuple[GenerationRequest, tuple[LogitsProcessor, ...]]] = deque()
        self._cancelled: deque[str] = deque()
        self._live: set[str] = set()
        self._state = "new"  # "new", "running", "closing", "closed", "failed"
        self._started = Event()
        self._startup_error: Exception | None = None
        self._thread = Thread(target=self._run, name="decode-loop", daemon=True)
        self._info: EngineInfo | None = None
        self._stats: EngineStats | None = None
        self._limits: Limits | None = None

    @property
    def info(self) -> EngineInfo:
        """What runs the model. Raises EngineUnavailable before `start`."""
        if self._info is None:
            raise EngineUnavailable("the engine has not started")
        return self._info

    @property
    def available(self) -> bool:
        """Whether it takes requests."""
        return self._state == "running"

    def start(self) -> None:
        """Load the model and begin stepping. Raises EngineError when that can't be done."""
        self._thread.start()
        self._started.wait()
        if self._startup_error is not None:
            self._thread.join()
            raise self._startup_error
        self._delivery.start()

    def submit(
        self, request: GenerationRequest, processors: Sequence[LogitsProcessor] = ()
    ) -> None:
        """Take a request. Raises InvalidRequest, EngineOverloaded or EngineUnavailable."""
        if (limits := self._limits) is not None:
            limits.check(request)  # a schema may take seconds: no step waits for it
        with self._changed:
            if self._state != "running" or limits is None:
                raise EngineUnavailable(f"the engine is not running: {self._state}")
            if request.request_id in self._live:
                raise InvalidRequest(f"request {request.request_id} is live already", "request_id")
            if len(self._live) >= self._config.max_live:
                raise EngineOverloaded(f"{len(self._live)} requests are live already")
            self._live.add(request.request_id)
            self._inbox.append((request, tuple(processors)))
            self._changed.notify_all()

    def cancel(self, request_id: str) -> None:
        """Stop a request at the next step; unknown and finished ids are ignored."""
        with self._changed:
            if request_id in self._live:
                self._cancelled.append(request_id)
                self._changed.notify_all()

    def stats(self) -> EngineStats:
        """Return a snapshot, as of the last step. Raises EngineUnavailable before `start`."""
        stats = self._stats
        if stats is None:
            raise EngineUnavailable("the engine has not started")
        with self._changed:
            arriving = len(self._inbox)
        return msgspec.structs.replace(stats, waiting=stats.waiting + arriving)

    def close(self) -> None:
        """End live requests as CANCELLED, deliver their finish records, and stop. Idempotent."""
        with self._changed:
            if self._state == "running":
                self._state = "closing"
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        self._delivery.close()

    def _run(self) -> None:
        try:
            loop = self._load()
        except Exception as error:  # noqa: BLE001 -- handed to whoever called `start`
            self._state = "failed"
            self._startup_error = (
                error
                if isinstance(error, EngineError)
                else EngineUnavailable(f"the model could not be loaded: {error}")
            )
            self._started.set()
            return
        with self._changed:
            self._state = "running"
        self._started.set()
        try:
            while self._receive(loop):
                if record := loop.step():
                    self._publish(loop, record)
                    if not loop.busy:
                        loop.check()
        except Exception:
            log.exception("engine.failed")
            self._state = "failed"
        self._bury(loop)

    def _load(self) -> DecodeLoop:
        model = open_model(self._model_path, self._config)
        loop = model.loop(self._config, engine_epoch=self.engine_epoch)
        self._limits, self._info, self._stats = model.limits, model.info, loop.stats()
        return loop

    def _receive(self, loop: DecodeLoop) -> bool:
        """Wait for something to do and hand it to the loop; false when it is time to stop."""
        with self._changed:
            while not (self._inbox or loop.busy) and self._state == "running":
                self._changed.wait()
            # Submissions before cancellations: a request may be cancelled before it was seen.
            while self._inbox:
                loop.submit(*self._inbox.popleft())
            while self._cancelled:
                loop.cancel(self._cancelled.popleft())
            return self._state == "running"

    def _publish(self, loop: DecodeLoop, record: StepRecord) -> None:
        self._stats = loop.stats()
        with self._changed:
            self._live.difference_update(finish.request_id for finish in record.finishes)
        self._delivery.put(record)

    def _bury(self, loop: DecodeLoop) -> None:
        """Give every request still live its finish record, whatever state the loop is in."""
        with self._changed:
            failed = self._state == "failed"
            self._state = "failed" if failed else "closed"
            reason = FinishReason.ERROR if failed else FinishReason.CANCELLED
            detail = "the engine failed" if failed else "the engine was closed"
            record = loop.abandon(reason, detail)
            known = {finish.request_id for finish in record.finishes}
            unseen = tuple(
                FinishRecord(request_id, reason, 0, 0, detail)
                for request_id in sorted(self._live - known)
            )
            self._live.clear()
            self._inbox.clear()
        if record.finishes or unseen:
            finishes = record.finishes + unseen
            self._delivery.put(msgspec.structs.replace(record, finishes=finishes))
        if failed and self._on_failure:
            self._delivery.close()
            self._on_failure()

    def _undeliverable(self, error: Exception) -> None:
        """Stop: what nobody hears of must not be computed."""
        log.error("engine.observer_lost", exc_info=error)
        with self._changed:
            self._state = "failed"
            self._changed.notify_all()
