"""Objects in huge pages, so that a process which wakes up finds them at once. Linux with glibc.

A gateway sleeps between batches of steps, and its engine shares the processors with it. Whoever
wakes has to look up again where its pages lie, which takes a virtual machine microseconds for each,
and one batch of steps touches two thousand pages of 4 kB. Python's own allocator asks for no larger
ones; glibc's does when told to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

TUNABLES = {
    "glibc.malloc.hugetlb": 1,  # since 2.35: advise the kernel to use huge pages
    # Freed pieces of each size that a thread keeps at hand; more are merged, and cut anew.
    "glibc.malloc.tcache_count": 10_000,
    "glibc.malloc.arena_max": 1,  # one heap: its threads share the interpreter's lock anyway
    "glibc.malloc.mmap_threshold": 32 << 20,  # what is freed stays at hand ...
    "glibc.malloc.trim_threshold": 256 << 20,  # ... instead of being asked for again page by page
}
GLIBC_MIN = (2, 35)
_KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What to start a process with so that its objects lie in huge pages. Changes nothing.

    As given where an allocator has been chosen (`PYTHONMALLOC`) or the system has no huge pages.
    """
    wanted = dict(given)
    if "PYTHONMALLOC" in given or not _are_offered():
        return wanted
    chosen = given.get("GLIBC_TUNABLES", "")
    ours = [f"{name}={value}" for name, value in TUNABLES.items() if f"{name}=" not in chosen]
    wanted["PYTHONMALLOC"] = "malloc"
    wanted["GLIBC_TUNABLES"] = ":".join([*filter(None, [chosen]), *ours])
    return wanted


def restart() -> None:
    """Begin this process anew with its objects in huge pages; do nothing where they can't be.

    Call it before anything else: what is buffered is lost, and what was loaded is loaded again.
    """
    wanted = environment()
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], wanted)  # noqa: S606 -- itself


def _are_offered() -> bool:
    if sys.platform != "linux" or "CS_GNU_LIBC_VERSION" not in os.confstr_names:
        return False
    name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    try:
        return (
            name == "glibc"
            and tuple(map(int, version.split(".")[:2])) >= GLIBC_MIN
            and "[never]" not in _KERNEL.read_text()
        )
    except (OSError, ValueError):
        return False
