"""The wall clock, in one place, so that a test can stop it."""

from __future__ import annotations

import time


def now_us() -> int:
    """Now, in epoch microseconds UTC."""
    return time.time_ns() // 1000


def monotonic_ns() -> int:
    """CLOCK_MONOTONIC, the clock of step records: shared by all processes of one machine."""
    return time.monotonic_ns()
