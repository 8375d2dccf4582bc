"""CPU time of another process, to the nanosecond where the system offers it."""

from __future__ import annotations

import os
import signal
import time

import psutil

from metering import clock
from metering.errors import SourceUnavailable

IDENTITY_CHECK_NS = 1_000_000_000  # between two looks at whose pid it is
_CPUCLOCK_SCHED = 2  # Linux: clock id of a process's CPU time is (~pid << 3) | 2


class ProcessClock:
    """Reads the CPU time, user and system, that one process has used.

    A pid taken over by another process is an error and not a jump: the process is known by a
    handle of its own where the system has such, else by pid and start time together.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._process = psutil.Process(pid)
            self._created = self._process.create_time()
            self._precise = self._has_clock()
            self._handle = _open_handle(pid)
            self._checked_ns = clock.monotonic_ns()
        except psutil.Error as error:
            raise SourceUnavailable(f"process {pid} cannot be observed: {error}") from error

    def read_ns(self) -> int:
        """CPU time since the process began; raises SourceUnavailable once it is gone."""
        if self._handle is None:
            self._check_identity()
        try:
            if self._handle is not None:
                _look_at(self._handle)
            if self._precise:
                return time.clock_gettime_ns((~self.pid << 3) | _CPUCLOCK_SCHED)
            times = self._process.cpu_times()
        except (OSError, psutil.Error) as error:
            raise SourceUnavailable(f"process {self.pid} is gone: {error}") from error
        return round((times.user + times.system) * 1e9)

    def close(self) -> None:
        """Let go of the process. Idempotent."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _check_identity(self) -> None:
        """Raise SourceUnavailable when the pid has come to mean another process; now and then."""
        now_ns = clock.monotonic_ns()
        if now_ns - self._checked_ns < IDENTITY_CHECK_NS:
            return
        self._checked_ns = now_ns
        try:
            same = psutil.Process(self.pid).create_time() == self._created
        except psutil.Error as error:
            raise SourceUnavailable(f"process {self.pid} is gone: {error}") from error
        if not same:
            raise SourceUnavailable(f"pid {self.pid} belongs to another process now")

    def _has_clock(self) -> bool:
        if not psutil.LINUX:
            return False
        try:
            precise_ns = time.clock_gettime_ns((~self.pid << 3) | _CPUCLOCK_SCHED)
        except OSError:
            return False
        times = self._process.cpu_times()
        # Both count the same; a clock that says otherwise is not the one we mean.
        return abs(precise_ns - round((times.user + times.system) * 1e9)) < 10**9


def _open_handle(pid: int) -> int | None:
    """What names one process for as long as it is open; null where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError as error:
        raise SourceUnavailable(f"process {pid} cannot be observed: {error}") from error
    except (AttributeError, OSError):  # not Linux, an old kernel, a sandbox
        return None


def _look_at(handle: int) -> None:
    """Raise ProcessLookupError once the process is gone, its end seen by its parent."""
    try:
        signal.pidfd_send_signal(handle, 0)  # none is sent
    except PermissionError:
        return  # it is there, and somebody else's
