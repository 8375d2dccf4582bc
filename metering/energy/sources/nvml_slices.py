"""What a MIG instance may be said to have used of its board: an estimate by slices.

NVML measures no slice: every instance of a board shows the whole board's counter, and adding
them up would multiply it. The instance is given its slices' part, and the rest is external.
"""

from __future__ import annotations

import msgspec

from metering.energy.protocols import Reading
from metering.energy.provenance import Provenance
from metering.energy.sources.nvml_board import Board
from metering.events import EnergyClass

UNCERTAINTY_PCT = 50


def of_board(board: Board, whole: Provenance) -> Provenance:
    """The provenance of a board's figures, or of the part of them that is its instance's."""
    if board.slice is None:
        return whole
    return msgspec.structs.replace(
        whole,
        energy_class=EnergyClass.ESTIMATED,
        scope="mig_slices",
        devices=(board.slice.uuid,),
        uncertainty_pct=UNCERTAINTY_PCT,
    )


def of_slice(board: Board, reading: Reading) -> Reading:
    """A board's totals, divided by slices where only an instance of it is ours."""
    if board.slice is None:
        return reading
    own_uj = reading.own_uj * board.slice.slices // board.slice.of
    return reading._replace(own_uj=own_uj, external_uj=reading.own_uj - own_uj)
