"""The compiled kernels as Python sees them: C functions, called without the interpreter lock."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_double, c_float, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Any

import structlog

from engine.kernels.cpu.compilation import CannotCompile, compiled_library

log = structlog.get_logger(__name__)

PHASES = (
    *("embed", "attention norm", "qkv", "place", "attend", "mixed to 8 bits", "output"),
    *("mlp norm", "swiglu", "inner to 8 bits", "down", "taps", "final norm", "head"),
)

# (result, arguments) by name; see native/interface.cpp
_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "error": (c_char_p, ()),
    "runnable": (c_char_p, ()),
    "runtime_new": (c_void_p, (c_int, c_char_p)),
    "runtime_free": (None, (c_void_p,)),
    "runtime_isa": (c_char_p, (c_void_p,)),
    "matrix_new": (c_void_p, (c_void_p, c_int, c_int, c_int, c_void_p, c_void_p)),
    "matrix_free": (None, (c_void_p,)),
    "project": (c_int, (c_void_p, c_void_p, c_int, c_void_p, c_void_p)),
    "statistics": (c_int, (c_void_p, c_int, c_int, c_void_p, c_void_p)),
    "model_new": (
        c_void_p,
        (c_void_p, c_void_p, c_float, c_float, c_int64, *(c_void_p,) * 4),
    ),
    "model_free": (None, (c_void_p,)),
    "step": (
        c_int,
        (
            *(c_void_p, c_int, c_void_p, c_void_p, c_void_p),
            *(c_int, c_void_p, c_void_p),
            *(c_int, c_void_p, c_void_p),
            *(c_int, c_void_p, c_void_p),
        ),
    ),
    "move": (c_int, (c_void_p, c_int, c_void_p, c_void_p)),
    "head_new": (
        c_void_p,
        (c_void_p, c_void_p, c_float, c_void_p, c_void_p, c_void_p),
    ),
    "head_free": (None, (c_void_p,)),
    "head_foresee": (
        c_int,
        (c_void_p, c_int, c_void_p, c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p),
    ),
    "time": (None, (c_void_p, c_int, POINTER(c_double))),
}


class Library:
    """The functions of one compiled library, by name without their prefix."""

    def __init__(self, path: Path) -> None:
        """Load it. Raises OSError."""
        loaded = ctypes.CDLL(str(path))
        self._functions: dict[str, Callable[..., Any]] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"dflash_{name}")
            function.restype, function.argtypes = result, arguments
            self._functions[name] = function

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._functions[name]

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """The variants that run here, best first."""
        return tuple(self["runnable"]().decode().split())

    def reason(self) -> str:
        """Return why the last call on this thread failed."""
        return str(self["error"]().decode())


@functools.cache
def open_library() -> Library | None:
    """Return the library, compiled if need be, or null where it can't be had; the log says why."""
    try:
        library = Library(compiled_library())
    except (CannotCompile, OSError) as error:
        log.warning(
            "no native kernels: torch computes instead, many times slower", reason=str(error)
        )
        return None
    if not library.instruction_sets:
        log.warning(
            "no native kernels: torch computes instead, many times slower", reason="no AVX2"
        )
        return None
    return library
