"""Which meter is found: measured before estimated, for the engine's device, or none at all."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from metering.energy import EnergySettings, open_meter, shown_uj
from metering.errors import InvalidEnergySettings, SourceUnavailable
from metering.events import EnergyClass


def test_without_rapl_a_cpu_engine_is_estimated(tmp_path: Path) -> None:
    meter = open_meter(EnergySettings(powercap_root=str(tmp_path)), os.getpid())
    assert meter.provenance.energy_class is EnergyClass.ESTIMATED
    assert meter.provenance.source == "cpu_time"
    assert meter.provenance.device == f"pid:{os.getpid()}"


def test_a_gpu_engine_without_nvml_has_no_meter() -> None:
    """The CPU's energy would say nothing of the GPU's work."""
    meter = open_meter(EnergySettings(), os.getpid(), "cuda:0")
    assert meter.provenance.energy_class is EnergyClass.UNAVAILABLE


def test_a_named_source_that_does_not_answer_is_an_error(tmp_path: Path) -> None:
    for source in ("nvml", "rapl"):
        settings = EnergySettings(source=source, powercap_root=str(tmp_path))
        with pytest.raises(SourceUnavailable):
            open_meter(settings, os.getpid())


def test_metering_can_be_switched_off() -> None:
    assert not open_meter(EnergySettings(source="none"), os.getpid()).available


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "guess"},
        {"sample_period_ms": 0},
        {"cpu_idle_w": -1.0},
        {"cpu_dynamic_w": float("nan")},
        {"cpu_idle_w": float("inf")},
        {"kv_read_cost": -1},
        {"prefill_token_cost": 0, "verified_node_cost": 0, "kv_read_cost": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidEnergySettings):
        msgspec.structs.replace(EnergySettings(), **changes)


@pytest.mark.parametrize(
    ("energy_uj", "shown"),
    [(None, None), (0, 0), (99_999, 0), (100_000, 100_000), (1_250_001, 1_200_000)],
)
def test_tenants_see_tenths_of_a_joule(energy_uj: int | None, shown: int | None) -> None:
    assert shown_uj(energy_uj) == shown
