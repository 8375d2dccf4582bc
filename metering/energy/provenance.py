"""How a figure of energy was had: it travels with the figure, on every record and receipt."""

from __future__ import annotations

import hashlib

import msgspec

from metering.events import EnergyClass

SHOWN_STEP_UJ = 100_000  # 0.1 J
DEVICE_NAME_MAX = 100  # what the column of windows holds


class Provenance(msgspec.Struct, frozen=True):
    """Class, source and scope of a meter's figures, and which devices they are of."""

    energy_class: EnergyClass
    source: str  # "nvml_total_energy", "rapl_powercap", "cpu_time", "none", ...
    scope: str  # "gpu_board", "cpu_package", "process", "none", ...
    devices: tuple[str, ...]  # "GPU-<uuid>", "cpu-packages:0,1", "pid:1234"
    uncertainty_pct: int | None
    update_period_us: int | None = None  # how often its counter moves, as measured; null: at will

    @property
    def device(self) -> str:
        """All devices under one name, which a long list shortens to its hash."""
        name = "+".join(self.devices)
        if len(name) <= DEVICE_NAME_MAX:
            return name
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        return f"{len(self.devices)} devices {digest}"


def together(parts: tuple[Provenance, ...]) -> Provenance:
    """The provenance of a sum: its class and bounds are those of its worst part.

    Parts come of one source, so that kinds of counters are never mixed in one series.
    """
    if len({(part.source, part.scope) for part in parts}) != 1:
        raise ValueError("counters of different kinds or scopes are not added up")
    worst = min(parts, key=lambda part: part.energy_class is EnergyClass.MEASURED)
    uncertainties = [part.uncertainty_pct for part in parts]
    periods = [part.update_period_us for part in parts]
    return msgspec.structs.replace(
        worst,
        devices=tuple(device for part in parts for device in part.devices),
        uncertainty_pct=max((each for each in uncertainties if each is not None), default=None),
        update_period_us=max((each for each in periods if each is not None), default=None),
    )


def shown_uj(energy_uj: int | None) -> int | None:
    """What a tenant may see of a request's energy: floored to 0.1 J. Null stays null.

    Finer figures of a shared batch would tell of the other tenants in it.
    """
    return None if energy_uj is None else energy_uj // SHOWN_STEP_UJ * SHOWN_STEP_UJ
