"""Runs Python of unknown origin apart: little time, memory and disk, and no network.

As a program it confines itself, then runs what comes on standard input.
"""

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
NOT_CONFINED, RAN_TO_ITS_END = 99, 77  # 0 is what a program says that leaves early


def available() -> bool:
    """Whether the kernel gives a process here a network of its own, which is none."""
    try:
        return runs("pass")
    except OSError:
        return False


def runs(source: str, cpu_s: int = CPU_S) -> bool:
    """Whether the program runs to its last line.

    Raises OSError where it can't be kept from the network; then nothing of it is run.
    """
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", __file__, str(cpu_s)],
            cwd=folder,
            env={"TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.communicate(source.encode(), WALL_S)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and whatever it began
            process.wait()
    if process.returncode == NOT_CONFINED:
        raise OSError("the kernel gives no user and network namespaces here")
    return process.returncode == RAN_TO_ITS_END


def _confine(cpu_s: int) -> None:
    if ctypes.CDLL(None).unshare(NEW_USERS | NEW_NETWORK):
        sys.exit(NOT_CONFINED)
    for limit, value in (
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_AS, MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_NPROC, 1),  # binds everybody but root
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    _confine(int(sys.argv[1]))
    exec(compile(sys.stdin.buffer.read(), "answer", "exec"), {"__name__": "__main__"})
    os._exit(RAN_TO_ITS_END)
