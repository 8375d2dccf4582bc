"""NVML's total-energy counter: millijoules of one GPU board since its driver was loaded.

The counter moves every 20 to 100 ms, depending on the board, so only a changed value says when
it held. It belongs to the whole board: of a MIG instance there is only an estimate.
"""

from __future__ import annotations

import pynvml  # type: ignore[import-untyped]

from metering import clock
from metering.energy.protocols import Reading
from metering.energy.provenance import Provenance
from metering.energy.sources.nvml_board import Board
from metering.energy.sources.nvml_slices import of_board, of_slice
from metering.events import EnergyClass

UNCERTAINTY_PCT = 5
DEFAULT_POWER_MAX_W = 2000.0  # of a board that doesn't say what it can draw


class NvmlTotalEnergy:
    """Measures the energy of one GPU board."""

    at_will = False
    is_counter = True

    def __init__(self, board: str) -> None:
        """Open a board by NVML index or UUID, or one of its MIG instances.

        Raises SourceUnavailable when there is no NVML, no such board, or no counter on it.
        """
        self.board = Board(board)
        try:
            self._read_uj()
        except BaseException:
            self.board.close()
            raise
        self.provenance = of_board(
            self.board,
            Provenance(
                energy_class=EnergyClass.MEASURED,
                source="nvml_total_energy",
                scope="gpu_board",
                devices=(self.board.uuid,),
                uncertainty_pct=UNCERTAINTY_PCT,
            ),
        )
        self.power_max_w = self.board.power_max_w or DEFAULT_POWER_MAX_W

    def read(self) -> Reading:
        """Read the counter; raises SourceUnavailable when the board does not answer."""
        before_ns = clock.monotonic_ns()
        total_uj = self._read_uj()
        at_ns = (before_ns + clock.monotonic_ns()) // 2
        return of_slice(self.board, Reading(at_ns, total_uj, 0, self.board.origin))

    def close(self) -> None:
        """Let go of NVML."""
        self.board.close()

    def _read_uj(self) -> int:
        return 1000 * int(self.board.ask(pynvml.nvmlDeviceGetTotalEnergyConsumption))
