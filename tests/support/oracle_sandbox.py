"""Runs Python of unknown origin apart: little time, memory and disk, and no network."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile

CPU_S = 4
WALL_S = 10
MEMORY_BYTES = 512 << 20
FILE_BYTES = 1 << 20
NEW_USERS, NEW_NETWORK = 0x10000000, 0x40000000


def available() -> bool:
    """Whether the kernel gives a process here a network of its own, which is none."""
    try:
        return runs("pass")
    except subprocess.SubprocessError:
        return False


def runs(source: str) -> bool:
    """Whether the program ends by itself, without an error.

    Raises SubprocessError where it can't be kept from the network; then nothing is run.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", source],
            cwd=folder,
            env={"TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=_confine,
            start_new_session=True,
        )
        try:
            return process.wait(WALL_S) == 0
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and whatever it began
            process.wait()


def _confine() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_USERS | NEW_NETWORK):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    for limit, value in (
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 1),  # binds everybody but root
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))
