"""Energy sources, each found by reading it, never by the name of the hardware."""

from metering.energy.sources.cpu_time import CpuTimeEstimate
from metering.energy.sources.nvml import NvmlTotalEnergy
from metering.energy.sources.nvml_power import GpuTimeEstimate, NvmlPowerIntegral
from metering.energy.sources.rapl import RaplPowercap
from metering.energy.sources.replay import TraceReplay
from metering.energy.sources.unmetered import Unmetered

__all__ = [
    "CpuTimeEstimate",
    "GpuTimeEstimate",
    "NvmlPowerIntegral",
    "NvmlTotalEnergy",
    "RaplPowercap",
    "TraceReplay",
    "Unmetered",
]
