"""The bench's side of an arm's process: start it, ask it, and say how it died."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Self

import msgspec

from engine.bench.records import (
    Failed,
    Opened,
    Reply,
    Request,
    Run,
    Scored,
    Setup,
    Windows,
    Workload,
)
from engine.errors import EngineError

# -P: a folder called `engine` where the bench was started is not ours
WORKER = ("-P", "-m", "engine.bench.worker")
LAST_WORDS = 800  # characters of a dead worker's stderr that are shown


class ArmFailed(EngineError):
    """An arm that could not be opened, could not do what was asked, or died."""


class Worker:
    """One engine in a process of its own. It computes only while it is asked something."""

    def __init__(self, name: str, setup: Setup, command: tuple[str, ...] = WORKER) -> None:
        """Start it and wait until its engine is open. Raises ArmFailed."""
        self.name = name
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the worker
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )
        self._decoder = msgspec.json.Decoder(Reply)
        try:
            opened = self._asked(setup)
        except ArmFailed:
            self.close()
            raise
        assert isinstance(opened, Opened), opened
        self.details, self.opening_ms = opened.details, opened.opening_ms

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(self, workload: Workload) -> Run:
        """Have a workload done. Raises ArmFailed."""
        ran = self._asked(workload)
        assert isinstance(ran, Run), ran
        return ran

    def score(self, windows: Windows) -> Scored:
        """Have windows scored. Raises ArmFailed."""
        scored = self._asked(windows)
        assert isinstance(scored, Scored), scored
        return scored

    def close(self) -> None:
        """End the process: it stops when its pipe is closed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if not self._process.stdin.closed:
            with suppress(BrokenPipeError):  # it is dead already
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._stderr.close()

    def _asked(self, question: Setup | Request) -> Reply:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode(question) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ArmFailed(self._obituary()) from None
        line = self._process.stdout.readline()
        if not line:
            raise ArmFailed(self._obituary())
        reply = self._decoder.decode(line)
        if isinstance(reply, Failed):
            raise ArmFailed(f"{self.name}: {reply.reason}")
        return reply

    def _obituary(self) -> str:
        status = self._process.wait()
        how = f"status {status}" if status >= 0 else signal.Signals(-status).name
        self._stderr.seek(0)
        words = self._stderr.read().decode(errors="replace").strip()[-LAST_WORDS:]
        return f"{self.name}: its process ended with {how}" + (
            f"; it said: {words}" if words else ""
        )
