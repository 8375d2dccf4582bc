"""NVML's total-energy counter: millijoules of one GPU board since its driver was loaded.

The counter moves every 20 to 100 ms, depending on the board, so only a changed value says when
it held. It belongs to the whole board: under MIG it cannot be split, and is refused.
"""

from __future__ import annotations

from typing import Any

import pynvml  # type: ignore[import-untyped]

from metering import clock
from metering.energy.protocols import Reading
from metering.energy.provenance import Provenance
from metering.errors import SourceUnavailable
from metering.events import EnergyClass

UNCERTAINTY_PCT = 5


class NvmlTotalEnergy:
    """Measures the energy of one GPU board."""

    at_will = False

    def __init__(self, board: str) -> None:
        """Open a board by NVML index or UUID.

        Raises SourceUnavailable when there is no NVML, no such board, or no counter on it.
        """
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise SourceUnavailable(f"NVML cannot be used: {error}") from error
        try:
            self._handle = _open_board(board)
            _refuse_mig(self._handle)
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
            self.name = str(pynvml.nvmlDeviceGetName(self._handle))
            self.driver_version = str(pynvml.nvmlSystemGetDriverVersion())
            uuid = str(pynvml.nvmlDeviceGetUUID(self._handle))
        except (pynvml.NVMLError, SourceUnavailable) as error:
            pynvml.nvmlShutdown()
            raise SourceUnavailable(f"NVML board {board} has no energy counter: {error}") from error
        self.provenance = Provenance(
            energy_class=EnergyClass.MEASURED,
            source="nvml_total_energy",
            scope="gpu_board",
            device=uuid,
            uncertainty_pct=UNCERTAINTY_PCT,
        )

    def read(self) -> Reading:
        """Read the counter; raises SourceUnavailable when the board does not answer."""
        before_ns = clock.monotonic_ns()
        try:
            energy_mj: int = pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except pynvml.NVMLError as error:
            raise SourceUnavailable(f"the GPU's energy counter is lost: {error}") from error
        at_ns = (before_ns + clock.monotonic_ns()) // 2
        return Reading(at_ns, energy_mj * 1000, 0)

    def close(self) -> None:
        """Let go of NVML."""
        pynvml.nvmlShutdown()


def _open_board(board: str) -> Any:
    if board.isdigit():
        return pynvml.nvmlDeviceGetHandleByIndex(int(board))
    return pynvml.nvmlDeviceGetHandleByUUID(board)


def _refuse_mig(handle: Any) -> None:
    try:
        current, _pending = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError:
        return  # a board or driver that does not know of MIG
    if current == pynvml.NVML_DEVICE_MIG_ENABLE:
        raise SourceUnavailable("the board is split by MIG, its counter is not")
