"""Finding the best meter that answers here, by asking each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog

from metering.energy.attribution import StepCosts
from metering.energy.meter import EnergyMeter
from metering.energy.protocols import EnergySource
from metering.energy.settings import EnergySettings
from metering.energy.sources import CpuTimeEstimate, NvmlTotalEnergy, RaplPowercap, Unmetered
from metering.errors import SourceUnavailable

log = structlog.get_logger(__name__)


def open_meter(settings: EnergySettings, pid: int, device: str = "cpu") -> EnergyMeter:
    """Open the meter for an engine process that computes on `device` ("cpu", "cuda:0").

    Measured comes before estimated: NVML for a GPU; RAPL, then the CPU-time estimate, for a CPU,
    whose work a GPU's counter says nothing of, nor the other way round. With nothing to read the
    meter is one without figures. Raises SourceUnavailable when a source that the settings name
    doesn't answer.
    """
    return EnergyMeter(
        _source(settings, pid, device),
        period_ms=settings.sample_period_ms,
        costs=StepCosts.of(settings),
    )


def _source(settings: EnergySettings, pid: int, device: str) -> EnergySource:
    openers: dict[str, Callable[[], EnergySource]] = {
        "nvml": lambda: NvmlTotalEnergy(settings.nvml_device),
        "rapl": lambda: RaplPowercap(Path(settings.powercap_root), pid),
        "cpu_time": lambda: CpuTimeEstimate(pid, settings.cpu_idle_w, settings.cpu_dynamic_w),
        "none": lambda: Unmetered("metering of energy is switched off"),
    }
    if settings.source != "auto":
        return openers[settings.source]()
    reasons = []
    for name in ("nvml",) if device.startswith("cuda") else ("rapl", "cpu_time"):
        try:
            source = openers[name]()
        except SourceUnavailable as error:
            reasons.append(f"{name}: {error}")
            continue
        provenance = source.provenance
        log.info(
            "energy.source_opened",
            source=provenance.source,
            energy_class=provenance.energy_class.value,
            device=provenance.device,
        )
        return source
    log.warning("energy.unavailable", reasons=reasons)
    return Unmetered("; ".join(reasons))
