"""How a figure of energy was had: it travels with the figure, on every record and receipt."""

from __future__ import annotations

import msgspec

from metering.events import EnergyClass

SHOWN_STEP_UJ = 100_000  # 0.1 J


class Provenance(msgspec.Struct, frozen=True):
    """Class, source and scope of a meter's figures, and which device they are of."""

    energy_class: EnergyClass
    source: str  # "nvml_total_energy", "rapl_powercap", "cpu_time", "none"
    scope: str  # "gpu_board", "cpu_package", "process", "none"
    device: str  # "GPU-<uuid>", "cpu-packages:0,1", "pid:1234"
    uncertainty_pct: int | None


def shown_uj(energy_uj: int | None) -> int | None:
    """What a tenant may see of a request's energy: floored to 0.1 J. Null stays null.

    Finer figures of a shared batch would tell of the other tenants in it.
    """
    return None if energy_uj is None else energy_uj // SHOWN_STEP_UJ * SHOWN_STEP_UJ
