"""A GPU's power, added up over time, where there is no counter of its energy.

Two sources: the power that NVML reports, measured, and the labelled estimate for boards that
report none: configured watts by the share of time in which the board computed. Neither is ever
continued by the other, nor by the counter: against the counter, integrated power was found to be
off by a factor of 1.75 at idle (ml-energy/zeus issue 181).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pynvml  # type: ignore[import-untyped]

from metering import clock
from metering.energy.protocols import Reading
from metering.energy.provenance import Provenance
from metering.energy.sources.nvml_board import Board
from metering.energy.sources.nvml_slices import of_board, of_slice
from metering.errors import SourceUnavailable
from metering.events import EnergyClass

# On recent boards the sensor itself looks only a quarter of the time (arXiv 2312.02741).
UNCERTAINTY_PCT = 15
GPU_TIME_UNCERTAINTY_PCT = 60
OVER_LIMIT_PCT = (
    125  # of the highest limit that can be set: no board draws more, as sensors have said
)
GAP_NS_MAX = 3_000_000_000  # what was drawn in a longer gap between two readings isn't known

PowerMw = Callable[[Any], int]


class _PowerIntegral:
    """Adds up milliwatts of one board, by trapezoids between readings."""

    at_will = False  # each reading is a call of the driver, so it is left to the sampler
    is_counter = False
    power_max_w: float | None = None  # there is no counter that could jump

    def __init__(self, board: Board, power_mw: PowerMw, provenance: Provenance) -> None:
        self.board = board
        self.provenance = of_board(board, provenance)
        self._power_mw = power_mw
        self._last: tuple[int, int] | None = None
        self._total_pj = 0
        self._gaps = 0

    def read(self) -> Reading:
        """Read the power and add it up; raises SourceUnavailable when the board doesn't answer."""
        before_ns = clock.monotonic_ns()
        power_mw = self.board.ask(self._power_mw)
        at_ns = (before_ns + clock.monotonic_ns()) // 2
        if self._last is not None:
            last_ns, last_mw = self._last
            if at_ns - last_ns > GAP_NS_MAX:
                self._gaps += 1
                self._total_pj = 0
            else:
                self._total_pj += (last_mw + power_mw) * (at_ns - last_ns) // 2
        self._last = (at_ns, power_mw)
        origin = self.board.origin + self._gaps
        return of_slice(self.board, Reading(at_ns, self._total_pj // 10**6, 0, origin))

    def close(self) -> None:
        """Let go of NVML."""
        self.board.close()


class NvmlPowerIntegral(_PowerIntegral):
    """Measures the energy of one GPU, or of the module it is a part of, from its power."""

    def __init__(self, board: str) -> None:
        """Raises SourceUnavailable when there is no NVML, no such board, or it tells no power."""
        opened = Board(board)
        try:
            scope, power_mw = _first_that_answers(opened)
            if scope == "gpu_board":
                power_mw = _within_limit(power_mw, opened.power_max_w)
        except BaseException:
            opened.close()
            raise
        provenance = Provenance(
            energy_class=EnergyClass.MEASURED,
            source="nvml_power_integral",
            scope=scope,
            devices=(opened.uuid,),
            uncertainty_pct=UNCERTAINTY_PCT,
        )
        super().__init__(opened, power_mw, provenance)


class GpuTimeEstimate(_PowerIntegral):
    """Estimates the energy of one GPU: idle watts, and more while it computes."""

    def __init__(self, board: str, idle_w: float, dynamic_w: float) -> None:
        """Raises SourceUnavailable when there is no NVML, no such board, or it tells no load."""
        idle_mw, dynamic_mw = round(idle_w * 1000), round(dynamic_w * 1000)

        def power_mw(handle: Any) -> int:
            return (
                idle_mw + dynamic_mw * int(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu) // 100
            )

        opened = Board(board)
        try:
            opened.ask(power_mw)
        except BaseException:
            opened.close()
            raise
        provenance = Provenance(
            energy_class=EnergyClass.ESTIMATED,
            source="gpu_time",
            scope="gpu_board",
            devices=(opened.uuid,),
            uncertainty_pct=GPU_TIME_UNCERTAINTY_PCT,
        )
        super().__init__(opened, power_mw, provenance)


def _first_that_answers(board: Board) -> tuple[str, PowerMw]:
    """The narrowest power that a board tells: of superchips only the module's may be known."""
    ways: list[tuple[str, PowerMw]] = [
        ("gpu_board", _instant(pynvml.NVML_POWER_SCOPE_GPU)),
        ("gpu_board", pynvml.nvmlDeviceGetPowerUsage),
        ("gpu_module", _instant(pynvml.NVML_POWER_SCOPE_MODULE)),
    ]
    for scope, power_mw in ways:
        try:
            board.ask(power_mw)
        except SourceUnavailable as error:
            refused = error
        else:
            return scope, power_mw
    raise SourceUnavailable(f"no power of the GPU or its module is told: {refused}")


def _within_limit(power_mw: PowerMw, limit_w: float | None) -> PowerMw:
    """The power, unless it is more than the board can draw: then it has not been told."""
    if limit_w is None:
        return power_mw
    most_mw = round(limit_w * 10 * OVER_LIMIT_PCT)

    def believed_mw(handle: Any) -> int:
        said_mw = power_mw(handle)
        if said_mw > most_mw:
            raise SourceUnavailable(f"a power of {said_mw} mW is beyond the board's limit")
        return said_mw

    return believed_mw


def _instant(scope: int) -> PowerMw:
    def power_mw(handle: Any) -> int:
        """The call succeeds even if the field it asks for could not be had."""
        field = (pynvml.NVML_FI_DEV_POWER_INSTANT, scope)
        [value] = pynvml.nvmlDeviceGetFieldValues(handle, [field])
        if value.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(value.nvmlReturn)
        return int(value.value.uiVal)

    return power_mw
