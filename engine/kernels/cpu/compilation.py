"""Compiling the native kernels, once per source, compiler and kind of machine.

The library holds one variant per instruction set; which of them run is decided when it is loaded.
A variant that a compiler is too old for is left out.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

SOURCES = Path(__file__).parent / "native"
COMPILERS = ("g++", "c++", "clang++")
_MACHINES = {"x86_64", "AMD64"}
_TIMEOUT_S = 300

_FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden"),
    # what is fused is said in the source: see kernels.cpp
    "-ffp-contract=off",
)
_VECTORS = ("-mavx2", "-mfma", "-mf16c")
_WIDE = (*_VECTORS, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni")
VARIANTS = {
    "avx2": _VECTORS,
    "avxvnni": (*_VECTORS, "-mavxvnni"),
    "avx512vnni": _WIDE,
    "amx": (*_WIDE, "-mamx-tile", "-mamx-int8"),
}
_REQUIRED = "avx2"


class CannotCompile(Exception):
    """No compiler, the wrong machine, or a compiler that refuses."""


def compiled_library(cache: Path | None = None) -> Path:
    """Return the library's path, compiling it first unless the cache has it.

    `cache` defaults to a folder of the user's, or a temporary one where that can't be written.
    Raises CannotCompile.
    """
    compiler = compiler_at_hand()
    folder = _writable(cache or Path.home() / ".cache" / "dflash" / "kernels")
    library = folder / f"{_digest(compiler)}.so"
    if library.exists():
        return library
    with (folder / "compiling").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # processes that start together need it once
        if not library.exists():
            log.info("compiling the native kernels, once", compiler=compiler)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _build(compiler, Path(scratch)).replace(library)  # whole or not at all
    return library


def compiler_at_hand() -> str:
    """The path of the compiler that would be used. Compiles nothing; raises CannotCompile."""
    if platform.system() != "Linux" or platform.machine() not in _MACHINES:
        raise CannotCompile(f"no native kernels for {platform.system()} on {platform.machine()}")
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise CannotCompile(f"no compiler: none of {', '.join(COMPILERS)} is installed")
    return compiler


def _writable(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="dflash-kernels-"))


def _digest(compiler: str) -> str:
    digest = hashlib.sha256(repr((_FLAGS, VARIANTS)).encode())
    digest.update(_run([compiler, "--version"]).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:24]


def _build(compiler: str, folder: Path) -> Path:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        variants = pool.map(lambda name: _variant(compiler, folder, name), reversed(VARIANTS))
        made = [name for name in variants if name]
        defined = [f"-DDFLASH_HAS_{name.upper()}=1" for name in made]
        others = [path for path in sorted(SOURCES.glob("*.cpp")) if path.stem != "kernels"]
        list(
            pool.map(
                lambda path: _compile(compiler, path, folder / f"{path.stem}.o", *defined), others
            )
        )
    library = folder / "library.so"
    objects = map(str, sorted(folder.glob("*.o")))
    _run([compiler, "-shared", "-pthread", "-o", str(library), *objects])
    return library


def _variant(compiler: str, folder: Path, name: str) -> str | None:
    target = folder / f"kernels-{name}.o"
    try:
        _compile(compiler, SOURCES / "kernels.cpp", target, f"-DDFLASH_ISA={name}", *VARIANTS[name])
    except CannotCompile:
        if name == _REQUIRED:
            raise
        target.unlink(missing_ok=True)
        return None
    return name


def _compile(compiler: str, source: Path, target: Path, *flags: str) -> None:
    _run([compiler, *_FLAGS, *flags, "-c", str(source), "-o", str(target)])


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        raise CannotCompile(error.stderr.strip()[:2000]) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotCompile(str(error)) from error
    return done.stdout
