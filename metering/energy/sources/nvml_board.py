"""One GPU board, found through NVML and found again after its driver was loaded anew.

Whether a board can answer is learnt by asking it, never from the name of its architecture: virtual
machines hide counters that the silicon has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import pynvml  # type: ignore[import-untyped]

from metering.errors import SourceUnavailable

T = TypeVar("T")

# After these the handle is worthless, and what the counter says later has another origin.
_LOST = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    }
)


class Slice(NamedTuple):
    """A MIG instance of a board: so many of its compute slices."""

    uuid: str
    slices: int
    of: int


class Board:
    """A board's handle. `origin` changes whenever a total may have begun anew."""

    def __init__(self, name: str) -> None:
        """Find a board by NVML's index or UUID, or by the UUID of one of its MIG instances.

        Raises SourceUnavailable when there is no NVML or no such board.
        """
        self.origin = 0
        self.slice: Slice | None = None
        self._handle: Any = None
        initialise()
        try:
            handle = find(name)
            if name.startswith("MIG-"):
                attributes = pynvml.nvmlDeviceGetAttributes_v2(handle)
                handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
                whole = int(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle))
                self.slice = Slice(name, int(attributes.gpuInstanceSliceCount), whole)
            elif is_divided(handle):
                raise SourceUnavailable(
                    f"NVML board {name} is split by MIG, its counter is not: name the instance"
                    " that the engine runs on (MIG-...) for an estimate by its slices"
                )
            self.uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            self.name = str(pynvml.nvmlDeviceGetName(handle))
            self.power_max_w = _power_max_w(handle)
        except pynvml.NVMLError as error:
            pynvml.nvmlShutdown()
            raise SourceUnavailable(f"NVML board {name} cannot be used: {error}") from error
        except SourceUnavailable:
            pynvml.nvmlShutdown()
            raise
        self._handle = handle

    def ask(self, question: Callable[[Any], T]) -> T:
        """What NVML answers of this board; raises SourceUnavailable when it doesn't."""
        if self._handle is None:
            self._find_again()
        try:
            return question(self._handle)
        except pynvml.NVMLError as error:
            if error.value in _LOST:
                self._let_go()
            raise SourceUnavailable(f"GPU {self.uuid} does not answer: {error}") from error

    def close(self) -> None:
        """Let go of NVML."""
        if self._handle is not None:
            self._let_go()

    def _find_again(self) -> None:
        initialise()
        try:
            self._handle = find(self.uuid)
        except pynvml.NVMLError as error:
            pynvml.nvmlShutdown()
            raise SourceUnavailable(f"GPU {self.uuid} has not come back: {error}") from error
        self.origin += 1

    def _let_go(self) -> None:
        self._handle = None
        pynvml.nvmlShutdown()


def initialise() -> None:
    """Load NVML, until `nvmlShutdown` was called as often; raises SourceUnavailable."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise SourceUnavailable(f"NVML cannot be used: {error}") from error


def find(name: str) -> Any:
    """The handle of a board by NVML's index or UUID, or of a MIG instance; raises NVMLError."""
    if name.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    return pynvml.nvmlDeviceGetHandleByUUID(name)


def is_divided(handle: Any) -> bool:
    """Whether a board is split by MIG."""
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return False  # a board or driver that does not know of MIG
    return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)


def _power_max_w(handle: Any) -> float | None:
    """The highest limit that can be set: no board draws more than that for long."""
    try:
        _least, most_mw = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)
    except pynvml.NVMLError:
        return None
    return most_mw / 1000 if most_mw else None
