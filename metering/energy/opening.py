"""Finding the best meter that answers here, by asking each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from engine.records import EngineInfo
from metering.energy.attribution import (
    CONFIGURED_WEIGHTS,
    DEFAULT_COSTS,
    DEFAULT_WEIGHTS,
    Policy,
    policy_named,
)
from metering.energy.calibration import Calibration
from metering.energy.meter import EnergyMeter
from metering.energy.protocols import EnergySource
from metering.energy.provenance import together
from metering.energy.settings import EnergySettings
from metering.energy.sources import (
    CpuTimeEstimate,
    GpuTimeEstimate,
    NvmlPowerIntegral,
    NvmlTotalEnergy,
    RaplPowercap,
    TraceReplay,
    Unmetered,
)
from metering.energy.sources.nvml_visible import board_of, check_group
from metering.errors import SourceUnavailable

log = structlog.get_logger(__name__)

FOR_GPU = ("nvml", "nvml_power", "gpu_time")
FOR_CPU = ("rapl", "cpu_time")


def open_meter(
    settings: EnergySettings,
    pid: int,
    device: str = "cpu",
    calibration: Calibration | None = None,
    *,
    device_uuid: str | None = None,
) -> EnergyMeter:
    """Open the meter for an engine process that computes on `device` ("cpu", "cuda:0").

    `device_uuid`: what CUDA calls a GPU, where the engine says so: "cuda:0" alone names no board.
    Measured comes before estimated: NVML's counter, its power, then the estimate for a GPU; RAPL,
    then the CPU-time estimate, for a CPU, whose work a GPU's counter says nothing of, nor the
    other way round. With nothing to read the meter is one without figures. Raises
    SourceUnavailable when a source that the settings name doesn't answer.
    """
    return EnergyMeter(
        *open_sources(settings, pid, device, device_uuid),
        period_ms=settings.sample_period_ms,
        policy=policy_of(settings, calibration),
    )


def open_meter_of(
    engine: EngineInfo, settings: EnergySettings, calibration: Calibration | None = None
) -> EnergyMeter:
    """Open the meter for a running engine, of the device that it says it is on."""
    return open_meter(
        settings, engine.pid, engine.device, calibration, device_uuid=engine.device_uuid
    )


def policy_of(settings: EnergySettings, calibration: Calibration | None) -> Policy:
    """How energy is split: what is configured comes before what was calibrated."""
    if settings.costs is not None:
        return policy_named(settings.attribution, settings.costs, CONFIGURED_WEIGHTS)
    if calibration is not None:
        return policy_named(settings.attribution, calibration.costs, calibration.id)
    return policy_named(settings.attribution, DEFAULT_COSTS, DEFAULT_WEIGHTS)


def open_sources(
    settings: EnergySettings, pid: int, device: str, device_uuid: str | None = None
) -> Sequence[EnergySource]:
    """The source that meters a device, or one for each board of a group; see `open_meter`."""
    if settings.source != "auto":
        return open_named(settings.source, settings, pid, device, device_uuid)
    reasons = []
    for name in FOR_GPU if device.startswith("cuda") else FOR_CPU:
        try:
            sources = open_named(name, settings, pid, device, device_uuid)
        except SourceUnavailable as error:
            reasons.append(f"{name}: {error}")
            continue
        said = together(tuple(source.provenance for source in sources))
        log.info(
            "energy.source_opened",
            source=said.source,
            energy_class=said.energy_class.value,
            devices=said.devices,
            passed_over=reasons,
        )
        return sources
    log.warning("energy.unavailable", reasons=reasons)
    return [Unmetered("; ".join(reasons))]


def open_named(
    name: str,
    settings: EnergySettings,
    pid: int,
    device: str,
    device_uuid: str | None = None,
) -> Sequence[EnergySource]:
    """The named source, for each device of its group; raises SourceUnavailable."""
    boards: dict[str, Callable[[str], EnergySource]] = {
        "nvml": NvmlTotalEnergy,
        "nvml_power": NvmlPowerIntegral,
        "gpu_time": lambda board: GpuTimeEstimate(
            board, settings.gpu_idle_w, settings.gpu_dynamic_w
        ),
    }
    if name in boards:
        named = settings.nvml_device
        if named is None:
            return _group(boards[name], [board_of(device, pid, device_uuid)])
        group = [board.strip() for board in named.split(",")]
        check_group(group, device_uuid if device.startswith("cuda") else None)
        return _group(boards[name], group)
    machines: dict[str, Callable[[], EnergySource]] = {
        "rapl": lambda: RaplPowercap(Path(settings.powercap_root), pid),
        "cpu_time": lambda: CpuTimeEstimate(pid, settings.cpu_idle_w, settings.cpu_dynamic_w),
        "replay": lambda: TraceReplay(Path(settings.replay_trace or "")),
        "none": lambda: Unmetered("metering of energy is switched off"),
    }
    return [machines[name]()]


def _group(opener: Callable[[str], EnergySource], boards: Sequence[str]) -> Sequence[EnergySource]:
    """The boards of a group: all of them in the same way, or none."""
    opened: list[EnergySource] = []
    try:
        for board in boards:
            source = opener(board)
            opened.append(source)
        said = [source.provenance for source in opened]
        if len({(each.source, each.scope) for each in said}) != 1:
            raise SourceUnavailable(
                f"the boards {','.join(boards)} are metered in different scopes"
            )
    except SourceUnavailable:
        for source in opened:
            source.close()
        raise
    return opened
