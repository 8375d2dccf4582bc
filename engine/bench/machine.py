"""What the bench runs on, and how much memory a process has taken. Torch-free."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path

import psutil

VECTOR_FLAGS = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def machine() -> dict[str, str]:
    """Describe the machine: processor, what of its vector units matters, cores, memory."""
    facts = _processor_facts()
    flags = set(facts.get("flags", "").split())
    return {
        "processor": facts.get("model name", platform.processor() or platform.machine()),
        "vector units": " ".join(flag for flag in VECTOR_FLAGS if flag in flags),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory_gib": f"{psutil.virtual_memory().total / 2**30:.1f}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
    }


def peak_memory_bytes() -> int:
    """Return the most memory this process has had resident since it started its program."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return int(psutil.Process().memory_info().rss)
    [kilobytes] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(kilobytes) * 1024


class OthersLoad:
    """How busy everybody else keeps the processors from its making on: a measurement's doubt.

    Ours are this process and those it has started that are still there.
    """

    def __init__(self) -> None:
        self._began, self._busy, self._own = time.monotonic(), _busy_s(), _own_s()

    def share(self) -> float:
        """Return others' processor time since then, as a share of all there was."""
        there_was = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        others = (_busy_s() - self._busy) - (_own_s() - self._own)
        return min(max(others / there_was, 0.0), 1.0)


def _busy_s() -> float:
    times = psutil.cpu_times()._asdict()
    return float(sum(times.get(kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq")))


def _own_s() -> float:
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children(recursive=True))]
    return float(sum(spent.user + spent.system for spent in times))


def _processor_facts() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    lines = [line.partition(":") for line in text.split("\n\n")[0].splitlines()]
    return {name.strip(): value.strip() for name, _, value in lines}
