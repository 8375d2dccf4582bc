"""Which of NVML's boards an engine's CUDA device is.

CUDA numbers the devices that its process may see, in an order of its own; NVML numbers all boards
of the machine. So an index of one says nothing of the other: the UUID does that the engine was
told by CUDA, and without it `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` of the engine's
process. What these leave open is refused, since another board's joules would be billed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import psutil
import pynvml  # type: ignore[import-untyped]

from metering.energy.sources.nvml_board import find, initialise, is_divided
from metering.errors import SourceUnavailable

REMEDY = "name the board by DFLASH_ENERGY__NVML_DEVICE"


class ListedBoard(NamedTuple):
    """A board as NVML lists it."""

    uuid: str
    is_divided: bool  # by MIG


def board_of(device: str, pid: int, device_uuid: str | None = None) -> str:
    """The UUID of the board, or of the MIG instance, that a process's CUDA device is.

    `device_uuid`: what CUDA calls it, where the process said so. Raises SourceUnavailable where
    there is no NVML, or where it cannot be told.
    """
    kind, _, number = device.partition(":")
    if kind != "cuda":
        raise SourceUnavailable(
            f"an engine on {device} computes on no GPU; to meter one all the same, {REMEDY}"
        )
    with _answering():
        if device_uuid is not None:
            found = _by_uuid(device_uuid)
            if found is not None:
                return found
        found = _visible(int(number or "0"), _boards_by_bus(), _environment(pid))
        if device_uuid is not None and _physical(found) != f"GPU-{device_uuid}":
            raise _untold(f"CUDA_VISIBLE_DEVICES shows process {pid} no instance of its board")
        return found


def check_group(names: Sequence[str], device_uuid: str | None = None) -> None:
    """Raise SourceUnavailable where these are no group that the engine's device belongs to.

    Two MIG instances of one board are none: each shows the whole board's counter, so what others
    used of it would be counted twice.
    """
    with _answering():
        physical = [_physical(name) for name in names]
        if len(set(physical)) != len(physical):
            raise SourceUnavailable(
                f"the boards {','.join(names)} are not all different: one board, or the instances"
                " of one, cannot be added up"
            )
        if device_uuid is None or f"GPU-{device_uuid}" in physical:
            return
        if f"MIG-{device_uuid}" not in names:
            raise SourceUnavailable(
                f"the engine computes on {device_uuid}, which is not among {','.join(names)}"
            )


@contextmanager
def _answering() -> Iterator[None]:
    initialise()
    try:
        yield
    except pynvml.NVMLError as error:
        raise SourceUnavailable(f"NVML does not say which board it is: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def _boards_by_bus() -> list[ListedBoard]:
    """All boards as `CUDA_DEVICE_ORDER=PCI_BUS_ID` has them."""
    handles = [
        pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
    ]
    if len(handles) > 1:
        handles.sort(key=lambda handle: _bus(pynvml.nvmlDeviceGetPciInfo(handle)))
    return [ListedBoard(pynvml.nvmlDeviceGetUUID(each), is_divided(each)) for each in handles]


def _bus(place: pynvml.nvmlPciInfo_t) -> tuple[int, int, int]:
    return place.domain, place.bus, place.device


def _by_uuid(device_uuid: str) -> str | None:
    """The board or instance of this UUID; null for a board whose instance is to be found."""
    board, instance = f"GPU-{device_uuid}", f"MIG-{device_uuid}"
    try:
        handle = find(board)
    except pynvml.NVMLError_NotFound:
        find(instance)
        return instance
    return None if is_divided(handle) else board


def _visible(index: int, boards: Sequence[ListedBoard], environment: Mapping[str, str]) -> str:
    """What CUDA calls device `index` in a process of this environment."""
    said = environment.get("CUDA_VISIBLE_DEVICES")
    if said is None:
        entries = [str(each) for each in range(len(boards))]
    else:
        entries = [entry.strip() for entry in said.split(",")]
    in_order = len(boards) == 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    # CUDA sees nothing behind an entry that names no device, and nothing at all if one comes twice.
    seen = [_entry(entry, boards, in_order=in_order) for entry in entries[: index + 1]]
    if index >= len(seen) or len({*entries}) != len(entries) or len({*seen}) != len(seen):
        raise _untold(f"CUDA_VISIBLE_DEVICES={said or ''!r} shows no device cuda:{index}")
    return seen[index]


def _entry(entry: str, boards: Sequence[ListedBoard], *, in_order: bool) -> str:
    """The board or instance that an entry of CUDA_VISIBLE_DEVICES names."""
    if entry.startswith("MIG-"):
        return entry
    if entry.startswith("GPU-"):
        found = [board.uuid for board in boards if board.uuid.startswith(entry)]
        if len(found) == 1:
            return found[0]
    elif entry.isdecimal() and int(entry) < len(boards):
        if any(board.is_divided for board in boards):
            raise _untold("where boards are split by MIG, CUDA's numbers are not NVML's")
        if not in_order:
            raise _untold(
                "which of several boards CUDA calls by a number is only known with"
                " CUDA_DEVICE_ORDER=PCI_BUS_ID, or by UUIDs in CUDA_VISIBLE_DEVICES"
            )
        return boards[int(entry)].uuid
    raise _untold(f"{entry!r} in CUDA_VISIBLE_DEVICES names no board")


def _physical(name: str) -> str:
    """The UUID of a board, by NVML's index or UUID of it, or by that of one of its instances."""
    try:
        handle = find(name)
        if name.startswith("MIG-"):
            handle = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
        return str(pynvml.nvmlDeviceGetUUID(handle))
    except pynvml.NVMLError as error:
        raise SourceUnavailable(f"NVML board {name} cannot be used: {error}") from error


def _environment(pid: int) -> Mapping[str, str]:
    try:
        return psutil.Process(pid).environ()
    except (psutil.Error, OSError) as error:
        raise _untold(f"the environment of process {pid} cannot be read: {error!r}") from error


def _untold(why: str) -> SourceUnavailable:
    return SourceUnavailable(f"it cannot be told which board the engine uses: {why}; {REMEDY}")
