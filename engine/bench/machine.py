"""What the bench runs on, and how much memory a process has taken. Torch-free."""

from __future__ import annotations

import os
import platform
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


def _processor_facts() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return {}
    lines = [line.partition(":") for line in text.split("\n\n")[0].splitlines()]
    return {name.strip(): value.strip() for name, _, value in lines}
