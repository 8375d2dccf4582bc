"""CPU time of another process, to the nanosecond where the system offers it."""

from __future__ import annotations

import time

import psutil

from metering import clock
from metering.errors import SourceUnavailable

IDENTITY_CHECK_NS = 1_000_000_000  # between two looks at whose pid it is
_CPUCLOCK_SCHED = 2  # Linux: clock id of a process's CPU time is (~pid << 3) | 2


class ProcessClock:
    """Reads the CPU time, user and system, that one process has used.

    The process is known by pid and start time together, so that a pid taken over by another
    process is an error and not a jump.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        try:
            self._process = psutil.Process(pid)
            self._created = self._process.create_time()
            self._precise = self._has_clock()
            self._checked_ns = clock.monotonic_ns()
        except psutil.Error as error:
            raise SourceUnavailable(f"process {pid} cannot be observed: {error}") from error

    def read_ns(self) -> int:
        """CPU time since the process began; raises SourceUnavailable once it is gone."""
        now_ns = clock.monotonic_ns()
        if now_ns - self._checked_ns >= IDENTITY_CHECK_NS:
            self._check_identity()
            self._checked_ns = now_ns
        try:
            if self._precise:
                return time.clock_gettime_ns((~self.pid << 3) | _CPUCLOCK_SCHED)
            times = self._process.cpu_times()
        except (OSError, psutil.Error) as error:
            raise SourceUnavailable(f"process {self.pid} is gone: {error}") from error
        return round((times.user + times.system) * 1e9)

    def _check_identity(self) -> None:
        """Raise SourceUnavailable when the pid has come to mean another process."""
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
