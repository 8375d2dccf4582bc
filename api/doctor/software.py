"""Checks of what is installed: Python, the pinned packages, and CUDA's libraries.

Versions are read from the distributions' metadata; torch is imported only where there is a GPU,
because only the libraries that a process has loaded tell which cuBLAS it will use.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from api.doctor.findings import Finding, fail, ok, warn
from engine.kernels.cpu.compilation import CannotCompile, compiler_at_hand

DISTRIBUTION = "dflash-gateway"
PYTHONS = ((3, 11), (3, 13))  # half-open
Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KnownBad:
    """A range of cuBLAS versions, half-open, that computes wrongly on some GPUs.

    `capabilities` are the major compute capabilities concerned; empty means all.
    """

    first: Version
    fixed: Version
    capabilities: frozenset[int]
    symptom: str
    source: str


KNOWN_BAD = (
    KnownBad(
        (12, 1, 3, 1),
        (12, 1, 3, 2),
        frozenset(),
        "int8 products of small matrices come out wrong",
        "pytorch/pytorch#107671",
    ),
    KnownBad(
        (12, 8),
        (13, 1, 0, 3),
        frozenset({10, 11}),
        "wrong results beside another kernel that uses tensor memory",
        "pytorch/pytorch#178333",
    ),
    KnownBad(
        (13, 5, 1, 27),
        (13, 5, 1, 28),
        frozenset({12}),
        "illegal memory accesses",
        "conda-forge/pytorch-cpu-feedstock#521",
    ),
)


@dataclass(frozen=True, slots=True)
class LoadedCuda:
    """What a process that imported torch has loaded. Null: no such library, or not installed."""

    torch_cuda: str | None  # the CUDA that torch was built for
    wheel_version: str | None  # of the cuBLAS distribution beside torch
    required_version: str | None  # the one that torch's metadata pins, if it pins any
    cublas: Path | None
    cublas_lt: Path | None
    capabilities: tuple[tuple[int, int], ...]


def python_version(current: tuple[int, int] = sys.version_info[:2]) -> Finding:
    """Whether this Python is one that the gateway is tested on."""
    found = ".".join(map(str, current))
    first, past = PYTHONS
    if first <= current < past:
        return ok("python", found)
    return fail("python", found, "create the virtual environment with Python 3.11 or 3.12")


def packages() -> Finding:
    """Whether the installed packages are the pinned ones, torch first of all."""
    strays = []
    for name, pinned in sorted(pins(metadata.requires(DISTRIBUTION) or ()).items()):
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed = "missing"
        if installed.partition("+")[0] != pinned:  # "+cpu" is the same release
            strays.append((name, installed, pinned))
    if not strays:
        return ok("packages", f"torch {_version_or_missing('torch')}, all pins met")
    found = ", ".join(f"{name} {installed}, not {pinned}" for name, installed, pinned in strays)
    advice = "pip install " + " ".join(f"{name}=={pinned}" for name, _, pinned in strays)
    wrong = any(name == "torch" or installed == "missing" for name, installed, _ in strays)
    return (fail if wrong else warn)("packages", found, advice)


def pins(requirements: Iterable[str]) -> dict[str, str]:
    """The exact pins among requirement lines, extras left out: `{"torch": "2.13.0"}`."""
    found = {}
    for line in requirements:
        match = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;,]+)", line.strip())
        if match:
            found[match[1]] = match[2]
    return found


def kernels(device: str, backend: str) -> Finding:
    """Whether the CPU kernels can be compiled, without which torch computes, and far slower."""
    if device != "cpu" or backend == "fp32":
        return ok("kernels", f"not used by {backend} on {device}")
    try:
        return ok("kernels", f"compiled by {compiler_at_hand()}, once")
    except CannotCompile as error:
        return warn(
            "kernels",
            f"{error}: torch computes instead, many times slower",
            "install g++ on x86-64 Linux, and start again",
        )


def cuda(gpu_count: int, device: str) -> Finding:
    """Whether torch and cuBLAS fit together. Imports torch, but only where there is a GPU."""
    if not gpu_count and device.startswith("cuda"):
        return fail("cuda", f"device {device}, but no NVIDIA GPU", "set DFLASH_ENGINE__DEVICE=cpu")
    if not gpu_count:
        return ok("cuda", "no NVIDIA GPU: not used")
    return judge_cuda(_loaded_cuda())


def judge_cuda(loaded: LoadedCuda) -> Finding:
    """Judge a CUDA build of torch and the cuBLAS it got, by file and by version."""
    if loaded.torch_cuda is None:
        return warn(
            "cuda",
            "a GPU, but a CPU build of torch",
            "to use the GPU, install the ordinary torch wheel and set DFLASH_ENGINE__DEVICE=cuda:0",
        )
    if loaded.cublas is None or loaded.cublas_lt is None:
        return fail("cuda", "torch loaded no cuBLAS", "reinstall torch: its wheel is incomplete")
    sound = ok("cuda", f"CUDA {loaded.torch_cuda}, cuBLAS {loaded.wheel_version or loaded.cublas}")
    return _misplaced(loaded, loaded.cublas, loaded.cublas_lt) or _known_bad(loaded) or sound


def _misplaced(loaded: LoadedCuda, cublas: Path, cublas_lt: Path) -> Finding | None:
    unset = "unset LD_LIBRARY_PATH, so that torch finds the libraries installed with it"
    if cublas.parent != cublas_lt.parent:
        # Seen as CUBLAS_STATUS_INVALID_VALUE or undefined symbols: pytorch/pytorch#174320.
        return fail("cuda", f"{cublas} with {cublas_lt}, a mixed pair", unset)
    if loaded.required_version not in (None, loaded.wheel_version):
        return fail(
            "cuda",
            f"cuBLAS {loaded.wheel_version}, where torch asks for {loaded.required_version}",
            "reinstall torch with its dependencies",
        )
    if loaded.wheel_version and "site-packages" not in cublas.parts:
        found = f"{cublas} instead of torch's own cuBLAS {loaded.wheel_version}"
        return fail("cuda", found, unset)
    return None


def _known_bad(loaded: LoadedCuda) -> Finding | None:
    if loaded.wheel_version is None:
        return None
    version = tuple(int(part) for part in re.findall(r"\d+", loaded.wheel_version))
    majors = {major for major, _minor in loaded.capabilities}
    for bad in KNOWN_BAD:
        if bad.first <= version < bad.fixed and (not bad.capabilities or majors & bad.capabilities):
            return fail(
                "cuda",
                f"cuBLAS {loaded.wheel_version}: {bad.symptom} ({bad.source})",
                "install the patch release that the source names",
            )
    return None


def _loaded_cuda() -> LoadedCuda:
    import torch  # noqa: PLC0415 (only where there is a GPU)

    if torch.version.cuda is None or not torch.cuda.is_available():
        return LoadedCuda(None, None, None, None, None, ())
    torch.ones(2, 2, device="cuda") @ torch.ones(2, 2, device="cuda")  # loads cuBLAS
    loaded = {
        path.name.partition(".so")[0]: path
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "/libcublas" in line and (path := Path(line.split(maxsplit=5)[-1]))
    }
    wheels = {
        name: distribution.version
        for distribution in metadata.distributions()
        if (name := str(distribution.metadata["Name"])).startswith("nvidia-cublas")
    }
    wheel = next(iter(wheels), None)
    required = pins(line.partition(";")[0] for line in metadata.requires("torch") or ())
    return LoadedCuda(
        torch_cuda=torch.version.cuda,
        wheel_version=wheels[wheel] if wheel else None,
        required_version=required.get(wheel) if wheel else None,
        cublas=loaded.get("libcublas"),
        cublas_lt=loaded.get("libcublasLt"),
        capabilities=tuple(
            torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())
        ),
    )


def _version_or_missing(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"
