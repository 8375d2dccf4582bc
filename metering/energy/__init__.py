"""Energy: what each request took of the meter, and how that figure was had."""

from metering.energy.attribution import Claim, Policy, StepCosts
from metering.energy.calibration import Calibration
from metering.energy.carbon import Grid
from metering.energy.meter import EnergyMeter
from metering.energy.opening import open_meter, open_meter_of
from metering.energy.provenance import Provenance, shown_uj
from metering.energy.replicas import Choice, Efficiency, by_choice
from metering.energy.settings import EnergySettings
from metering.energy.windows import PendingStep, Share, Window, WindowCloser

__all__ = [
    "Calibration",
    "Choice",
    "Claim",
    "Efficiency",
    "EnergyMeter",
    "EnergySettings",
    "Grid",
    "PendingStep",
    "Policy",
    "Provenance",
    "Share",
    "StepCosts",
    "Window",
    "WindowCloser",
    "by_choice",
    "open_meter",
    "open_meter_of",
    "shown_uj",
]
