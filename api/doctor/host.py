"""Checks of the machine: kernel settings, meters, memory, disk and processors."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psutil
import pynvml  # type: ignore[import-untyped]

from api.doctor.findings import Finding, fail, ok, warn

MIN_FREE_KBYTES = 262_144
GIB = 1 << 30
DISK_FAIL_BYTES = GIB // 2
DISK_WARN_BYTES = 2 * GIB
MEMORY_BESIDE_BYTES = GIB  # torch, key-value pages, the gateway


def min_free_kbytes(
    gpu_count: int, setting: Path = Path("/proc/sys/vm/min_free_kbytes")
) -> Finding:
    """Whether the kernel keeps enough memory free for a GPU driver's atomic allocations."""
    if not gpu_count:
        return ok("vm.min_free_kbytes", "no NVIDIA GPU: any value does")
    try:
        value = int(setting.read_text())
    except (OSError, ValueError):
        return warn(
            "vm.min_free_kbytes",
            f"{setting} can't be read",
            f"have the host's administrator check that it is at least {MIN_FREE_KBYTES}",
        )
    if value >= MIN_FREE_KBYTES:
        return ok("vm.min_free_kbytes", str(value))
    return fail(
        "vm.min_free_kbytes",
        f"{value}, below {MIN_FREE_KBYTES}: transfers to the GPU may stall or fail under load",
        f"sysctl -w vm.min_free_kbytes={MIN_FREE_KBYTES}, and keep it in /etc/sysctl.d",
    )


def nvml() -> tuple[int, Finding]:
    """How many NVIDIA GPUs there are, and whether their energy counters can be read."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return 0, judge_nvml(error)
    try:
        count = pynvml.nvmlDeviceGetCount()
        for index in range(count):
            pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(index))
    except pynvml.NVMLError as error:
        return count, judge_nvml(error)
    finally:
        pynvml.nvmlShutdown()
    if not count:
        return 0, ok("nvml", "an NVIDIA driver without a GPU")
    return count, ok("nvml", f"{count} GPU(s), energy counters readable")


def judge_nvml(error: pynvml.NVMLError) -> Finding:
    """Say what an error of NVML means for metering."""
    absent = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    if error.value in absent:
        return ok("nvml", "no NVIDIA driver: GPU energy is not metered")
    if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
        return warn(
            "nvml",
            "a GPU whose energy counter this user may not read",
            "run as a user with access to /dev/nvidia*, or give the container the GPU",
        )
    if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
        return warn(
            "nvml",
            "a GPU without an energy counter",
            "joules come from its power or are estimated, and say so; GPUs since Volta have it",
        )
    return warn("nvml", str(error), "reinstall the NVIDIA driver, or reboot after its update")


def rapl(root: Path = Path("/sys/class/powercap")) -> Finding:
    """Whether the processors' energy counters can be read."""
    counters = sorted(root.glob("intel-rapl:[0-9]*/energy_uj"))
    if not counters:
        return warn(
            "rapl",
            "this machine shows no RAPL counters, as most virtual machines do",
            "joules are estimated from CPU time: set DFLASH_ENERGY__CPU_IDLE_W and"
            " DFLASH_ENERGY__CPU_DYNAMIC_W to this machine's figures",
        )
    for counter in counters:
        try:
            counter.read_text()
        except OSError:
            # Root only since Linux 5.10: the counter leaks what other processes compute.
            return warn(
                "rapl",
                f"{counter} is readable by root only",
                "give the gateway's group read access with a udev rule, or accept estimates",
            )
    return ok("rapl", f"{len(counters)} package counter(s) readable")


def memory(model_bytes: int, available_bytes: int | None = None) -> Finding:
    """Whether there is room for the model's weights, its cache and the gateway."""
    free = psutil.virtual_memory().available if available_bytes is None else available_bytes
    least = model_bytes + MEMORY_BESIDE_BYTES // 2
    advice = "end other programs, or lower DFLASH_ENGINE__KV_TOKENS"
    return _room("memory", free, least, model_bytes + MEMORY_BESIDE_BYTES, advice)


def disk(home: Path, free_bytes: int | None = None) -> Finding:
    """Whether the home can be written, and has room for models and for what must be durable."""
    place = home.absolute()
    while not place.exists():
        place = place.parent
    if not os.access(place, os.W_OK):
        return fail("disk", f"{place} can't be written by this user", "give it to this user")
    free = shutil.disk_usage(place).free if free_bytes is None else free_bytes
    return _room("disk", free, DISK_FAIL_BYTES, DISK_WARN_BYTES, f"make room on {place}")


def threads(wanted: int | None, cpu_max: Path = Path("/sys/fs/cgroup/cpu.max")) -> Finding:
    """Whether the engine's threads fit the processors that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    usable = float(cores or 1)
    try:
        quota, period = cpu_max.read_text().split()
        if quota != "max":
            usable = min(usable, int(quota) / int(period))
    except (OSError, ValueError):
        pass  # no cgroup v2: no quota to respect
    started = wanted or (cores or 1)
    if started <= usable:
        return ok("threads", f"{started} of {usable:g} usable processors")
    return warn(
        "threads",
        f"{started} engine threads on {usable:g} usable processors: they will wait for each other",
        f"set DFLASH_ENGINE__THREADS={max(1, int(usable))}",
    )


def _room(check: str, free: int, least: int, enough: int, advice: str) -> Finding:
    found = f"{free / GIB:.1f} GiB free"
    if free < least:
        return fail(check, found, advice)
    return ok(check, found) if free >= enough else warn(check, found, advice)
