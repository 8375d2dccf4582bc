"""How energy is metered here: which source, how a step's is split, and what estimates multiply."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from metering.energy.attribution import POLICIES, StepCosts
from metering.energy.carbon import Grid
from metering.errors import InvalidEnergySettings

SOURCES = (
    "auto",
    "nvml",
    "nvml_power",
    "gpu_time",
    "rapl",
    "cpu_time",
    "replay",
    "none",
)


class EnergySettings(msgspec.Struct, frozen=True):
    """What to meter with. `auto` takes the best source that answers for the engine's device.

    A source that is named here and doesn't answer is an error, never a silent fallback.
    """

    source: str = "auto"
    sample_period_ms: int = 50  # between two readings, outside the decode loop, at most
    # NVML's index or UUID of the board, a MIG instance's UUID, or several with commas: a group
    # that computes together. Null: the index of the engine's device.
    nvml_device: str | None = None
    powercap_root: str = "/sys/class/powercap"
    replay_trace: str | None = None  # the file that `replay` plays
    cpu_idle_w: float = 10.0  # estimate: watts of the idle machine, per second of wall time
    cpu_dynamic_w: float = 10.0  # estimate: watts on top of it, per second of CPU time
    gpu_idle_w: float = 60.0  # estimate: watts of the idle board, per second of wall time
    gpu_dynamic_w: float = 240.0  # estimate: watts on top of it, per second in which it computes
    attribution: str = "affine-shapley/1"  # how a step's energy is split among its requests
    # What work costs, as whole numbers whose ratios matter; all four, or none of them: null takes
    # what was calibrated for the model, the device and the precision, if it was, else a default.
    step_fixed_cost: int | None = None  # a step's fixed cost, against ...
    prefill_token_cost: int | None = None  # ... one prompt row computed, ...
    verified_node_cost: int | None = None  # ... one tree node scored, ...
    kv_read_cost: int | None = None  # ... and one key read
    grid_gco2e_per_kwh: float | None = None  # carbon, as a view of joules; null: none is shown

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise InvalidEnergySettings(
                f"energy source {self.source!r} is none of {', '.join(SOURCES)}"
            )
        if self.attribution not in POLICIES:
            raise InvalidEnergySettings(
                f"attribution {self.attribution!r} is none of {', '.join(POLICIES)}"
            )
        if (self.source == "replay") is (self.replay_trace is None):
            raise InvalidEnergySettings("source `replay` and `replay_trace` come together")
        if not 1 <= self.sample_period_ms <= 1000:
            raise InvalidEnergySettings("sample_period_ms must be from 1 to 1000")
        watts = (self.cpu_idle_w, self.cpu_dynamic_w, self.gpu_idle_w, self.gpu_dynamic_w)
        if not all(0 <= value < 1e6 for value in watts):
            raise InvalidEnergySettings("watts must be finite and not negative")
        if not 0 <= (self.grid_gco2e_per_kwh or 0) < 1e5:
            raise InvalidEnergySettings("grid_gco2e_per_kwh must be finite and not negative")
        self._check_costs()

    @property
    def costs(self) -> StepCosts | None:
        """What work costs, where it is configured."""
        fixed, prefill, node, kv_read = self._given_costs()
        if fixed is None or prefill is None or node is None or kv_read is None:
            return None
        return StepCosts(fixed, prefill, node, kv_read)

    @property
    def grid(self) -> Grid | None:
        """What carbon is shown by; null where it isn't."""
        intensity = self.grid_gco2e_per_kwh
        return None if intensity is None else Grid(Decimal(repr(intensity)))

    def _check_costs(self) -> None:
        given = [cost for cost in self._given_costs() if cost is not None]
        if not given:
            return
        if len(given) < 4:
            raise InvalidEnergySettings("the four costs of work are configured together")
        if min(given) < 0 or not any(given[1:]):
            raise InvalidEnergySettings("costs of work must not be negative, nor all zero")

    def _given_costs(self) -> tuple[int | None, ...]:
        return (
            self.step_fixed_cost,
            self.prefill_token_cost,
            self.verified_node_cost,
            self.kv_read_cost,
        )
