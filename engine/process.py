"""The engine in a process of its own, so that decoding and serving share no interpreter lock.

The same door as `engine.service.EngineService`. A child that dies ends its live requests as ERROR
and is replaced, under a new `engine_epoch`. This side imports no torch.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from threading import Event, Lock, Thread

import structlog

from engine import huge_pages, wire
from engine.config import EngineConfig
from engine.delivery import StepDelivery
from engine.errors import EngineError, EngineUnavailable, InvalidRequest
from engine.protocols import StepObserver
from engine.records import EngineInfo, EngineStats, FinishReason, FinishRecord, StepRecord
from engine.requests import GenerationRequest
from engine.scheduler.admission import check_sampling

log = structlog.get_logger(__name__)

_ANSWER_TIMEOUT_S = 30.0  # a child that takes longer to answer is stuck, and is replaced
_CLOSE_TIMEOUT_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0


class EngineProcess:
    """Keeps one engine process running. Safe to use from any thread."""

    def __init__(
        self,
        model_path: Path | str,
        config: EngineConfig,
        observer: StepObserver,
        *,
        on_replaced: Callable[[EngineInfo], None] | None = None,
    ) -> None:
        """`on_replaced` hears of a new child before that takes its first request."""
        self._on_replaced = on_replaced
        self._start = wire.Start(str(Path(model_path).absolute()), config)
        self._delivery = StepDelivery(observer, on_failure=self._observer_lost)
        self._changed = Lock()
        self._child: Child | None = None
        self._info: EngineInfo | None = None
        self._closing = Event()
        self._keeper = Thread(target=self._keep, name="engine-keeper", daemon=True)

    @property
    def info(self) -> EngineInfo:
        """What runs the model; of the last child, while it is being replaced."""
        if self._info is None:
            raise EngineUnavailable("the engine has not started")
        return self._info

    @property
    def available(self) -> bool:
        """Whether there is a child that takes requests."""
        return self._child is not None and not self._closing.is_set()

    def start(self) -> None:
        """Start the child and wait until its model is loaded. Raises what made it fail."""
        self._child = self._launch()
        self._delivery.start()
        self._keeper.start()

    def submit(self, request: GenerationRequest) -> None:
        """Take a request. Raises InvalidRequest, EngineOverloaded or EngineUnavailable."""
        check_sampling(request.sampling)
        self._running().submit(request)

    def cancel(self, request_id: str) -> None:
        """Stop a request at the next step; unknown and finished ids are ignored."""
        child = self._child
        if child is not None:
            child.cancel(request_id)

    def stats(self) -> EngineStats:
        """Return a snapshot, as of the last step. Raises EngineUnavailable."""
        return self._running().stats()

    def close(self) -> None:
        """End live requests, deliver their finish records, and stop the child. Idempotent."""
        self._closing.set()
        with self._changed:
            child = self._child
        if child is not None:
            child.close()
        if self._keeper.is_alive():
            self._keeper.join()
        self._delivery.close()

    def _running(self) -> Child:
        child = self._child
        if child is None or self._closing.is_set():
            state = "closed" if self._closing.is_set() else "restarting, or has not started"
            raise EngineUnavailable(f"the engine is {state}")
        return child

    def _launch(self) -> Child:
        child = Child(self._start, self._delivery)
        self._info = child.info
        return child

    def _keep(self) -> None:
        """Replace the child whenever it dies, until closing."""
        pause_s = _FIRST_PAUSE_S
        while (child := self._child) is not None:
            child.wait()
            with self._changed:
                self._child = None
            if self._closing.is_set():
                return
            log.error("engine.lost", pid=child.pid, status=child.status)
            while not self._closing.wait(pause_s):
                replacement = self._replacement()
                if replacement is None:
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    continue
                pause_s = _FIRST_PAUSE_S
                with self._changed:
                    self._child = replacement
                if self._closing.is_set():
                    replacement.close()
                log.info("engine.restarted", pid=replacement.pid)
                break

    def _replacement(self) -> Child | None:
        """Start a child and tell of it; null where either fails, which is tried again later.

        Whatever went wrong: without its keeper the engine would be gone for good.
        """
        try:
            child = self._launch()
        except Exception as error:
            known = isinstance(error, EngineError)
            log.error("engine.restart_failed", error=str(error), exc_info=not known)
            return None
        try:
            if self._on_replaced is not None:
                self._on_replaced(child.info)
        except Exception:
            log.exception("engine.not_taken_over", pid=child.pid)
            child.kill()
            child.wait()
            return None
        return child

    def _observer_lost(self, error: Exception) -> None:
        """Nobody records what the engine does any more: stop it for good."""
        log.error("engine.observer_lost", exc_info=error)
        self._closing.set()
        child = self._child
        if child is not None:
            child.kill()


@dataclass(slots=True)
class _Told:
    """What this side knows of a live request."""

    accepted: bool = False  # the child took it, so it must end in a finish record
    blocks: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _Question:
    """A command that waits for its answer; for a submission, with what it is about."""

    told: _Told | None = None
    answer: wire.Answer | None = None
    over: Event = field(default_factory=Event)  # answered, or it never will be


class Child:
    """One engine process, from its start to its death."""

    def __init__(self, start: wire.Start, delivery: StepDelivery) -> None:
        """Start the process and wait until its model is loaded. Raises what made it fail."""
        self._delivery = delivery
        self._changed = Lock()
        self._sequence = count()
        self._questions: dict[int, _Question] = {}
        self._live: dict[str, _Told] = {}
        self._lost = False
        self._next_step = 0
        self._process, self._control, self._steps = _spawn()
        self.pid = self._process.pid
        self._control.send(start)
        reply = self._control.receive_reply()
        if not isinstance(reply, wire.Started):
            self.kill()
            self._process.wait()
            self._hang_up()
            if isinstance(reply, wire.Failure):
                raise reply.error()
            raise EngineUnavailable(
                f"the engine died while loading, status {self._process.returncode}"
            )
        self.engine_epoch, self.info = reply.engine_epoch, reply.info
        self._threads = [
            Thread(target=self._read_answers, name="engine-answers", daemon=True),
            Thread(target=self._read_steps, name="engine-steps", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def status(self) -> int | None:
        """The exit status; negative for a signal, null while it lives."""
        return self._process.poll()

    def submit(self, request: GenerationRequest) -> None:
        """Hand over a request and wait until it is taken or refused."""
        told = _Told()
        with self._changed:
            if request.request_id in self._live:
                raise InvalidRequest(f"request {request.request_id} is live already", "request_id")
            self._live[request.request_id] = told
        try:
            answer = self._ask(lambda sequence: wire.Submit(sequence, request), told)
        except EngineUnavailable:
            with self._changed:
                self._live.pop(request.request_id, None)
                if told.accepted:
                    return  # it was taken: its finish record says what became of it
            raise
        except Exception as error:
            with self._changed:
                self._live.pop(request.request_id, None)
            if isinstance(error, OverflowError | UnicodeEncodeError):
                raise InvalidRequest(f"the request cannot be sent: {error}") from error
            raise
        if answer.failure is not None:
            with self._changed:
                self._live.pop(request.request_id, None)
            raise answer.failure.error()

    def cancel(self, request_id: str) -> None:
        """Pass on a cancellation; nothing to do where the child is gone."""
        try:
            self._control.send(wire.Cancel(request_id))
        except OSError:
            return

    def stats(self) -> EngineStats:
        """Ask for a snapshot."""
        answer = self._ask(wire.Stats)
        assert answer.stats is not None
        return answer.stats

    def close(self) -> None:
        """Let the child finish what it says, and wait for it; kill it if it takes too long."""
        with suppress(OSError):  # where it is gone already
            self._control.send(wire.Close())
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self.wait()

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()

    def wait(self) -> None:
        """Return when the process is gone and everything it said has been queued."""
        self._process.wait()
        for thread in self._threads:
            thread.join()

    def _ask(
        self, command: Callable[[int], wire.Command], told: _Told | None = None
    ) -> wire.Answer:
        sequence, question = next(self._sequence), _Question(told)
        with self._changed:
            if self._lost:
                raise EngineUnavailable("the engine is restarting")
            self._questions[sequence] = question
        try:
            self._control.send(command(sequence))
        except Exception as error:
            with self._changed:
                self._questions.pop(sequence, None)
            if isinstance(error, OSError):
                raise EngineUnavailable("the engine was lost") from error
            raise
        if not question.over.wait(_ANSWER_TIMEOUT_S):
            log.error("engine.stuck", pid=self.pid)
            self.kill()
            question.over.wait()
        if question.answer is None:
            raise EngineUnavailable("the engine was lost")
        return question.answer

    def _read_answers(self) -> None:
        while isinstance(reply := self._control.receive_reply(), wire.Answer):
            with self._changed:
                question = self._questions.pop(reply.sequence, None)
                if question is None:
                    continue  # the child was given up meanwhile
                question.answer = reply
                if question.told and reply.failure is None:
                    question.told.accepted = True
            question.over.set()

    def _read_steps(self) -> None:
        while isinstance(reply := self._steps.receive_reply(), wire.Steps):
            for step in reply.steps:
                self._note(step)
                self._delivery.put(step)
        self._end()
        self._bury()
        self._hang_up()

    def _hang_up(self) -> None:
        self._control.close()
        self._steps.close()

    def _end(self) -> None:
        """See the process off: without its steps a child is of no use, if it lives at all."""
        try:
            self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.kill()

    def _note(self, step: StepRecord) -> None:
        """Remember how far each request got, in case the child can't say how it ended."""
        with self._changed:
            self._next_step = step.step_index + 1
            for block in step.blocks:
                told = self._live.setdefault(block.request_id, _Told())
                told.accepted = True
                told.blocks = block.block_index + 1
                told.tokens += len(block.token_ids)
            for finish in step.finishes:
                if finish.request_id in self._live:
                    self._live.pop(finish.request_id).accepted = True

    def _bury(self) -> None:
        """End every request that the child took and did not finish; wake whoever waits on it."""
        with self._changed:
            self._lost = True
            finishes = tuple(
                FinishRecord(
                    request_id, FinishReason.ERROR, told.blocks, told.tokens, "engine lost"
                )
                for request_id, told in self._live.items()
                if told.accepted
            )
            self._live.clear()
            waiting = list(self._questions.values())
            self._questions.clear()
        if finishes:
            now_ns = time.monotonic_ns()
            self._delivery.put(
                StepRecord(
                    engine_epoch=self.engine_epoch,
                    step_index=self._next_step,
                    start_ns=now_ns,
                    end_ns=now_ns,
                    finishes=finishes,
                )
            )
        for question in waiting:
            question.over.set()


def _spawn() -> tuple[subprocess.Popen[bytes], wire.Channel, wire.Channel]:
    """Start a worker that inherits one end of two sockets; return it with the other ends."""
    control, its_control = socket.socketpair()
    steps, its_steps = socket.socketpair()
    with its_control, its_steps:
        theirs = (its_control.fileno(), its_steps.fileno())
        process = subprocess.Popen(
            # -P: a folder called `engine` where the gateway was started is not ours.
            [sys.executable, "-P", "-m", "engine.worker", *map(str, theirs)],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            env=huge_pages.environment(),
        )
    return process, wire.Channel(control), wire.Channel(steps)
