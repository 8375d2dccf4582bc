"""How energy is metered here: which source, and the figures that an estimate multiplies."""

from __future__ import annotations

import msgspec

from metering.errors import InvalidEnergySettings

SOURCES = ("auto", "nvml", "rapl", "cpu_time", "none")


class EnergySettings(msgspec.Struct, frozen=True):
    """What to meter with. `auto` takes the best source that answers for the engine's device.

    A source that is named here and doesn't answer is an error, never a silent fallback.
    """

    source: str = "auto"
    sample_period_ms: int = 50  # between two readings, outside the decode loop
    nvml_device: str = "0"  # NVML's index or UUID of the board
    powercap_root: str = "/sys/class/powercap"
    cpu_idle_w: float = 10.0  # estimate: watts of the idle machine, per second of wall time
    cpu_dynamic_w: float = 10.0  # estimate: watts on top of it, per second of CPU time
    step_fixed_cost: int = 80_000  # attribution: a step's fixed cost, against ...
    prefill_token_cost: int = 4_000  # ... one prompt row computed, ...
    verified_node_cost: int = 4_000  # ... one tree node scored, ...
    kv_read_cost: int = 1  # ... and one key read

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise InvalidEnergySettings(
                f"energy source {self.source!r} is none of {', '.join(SOURCES)}"
            )
        if not 1 <= self.sample_period_ms <= 10_000:
            raise InvalidEnergySettings("sample_period_ms must be from 1 to 10000")
        watts = (self.cpu_idle_w, self.cpu_dynamic_w)
        if not all(0 <= value < 1e6 for value in watts):
            raise InvalidEnergySettings("watts must be finite and not negative")
        costs = (
            self.step_fixed_cost,
            self.prefill_token_cost,
            self.verified_node_cost,
            self.kv_read_cost,
        )
        if min(costs) < 0 or not any(costs[1:]):
            raise InvalidEnergySettings("costs of work must not be negative, nor all zero")
