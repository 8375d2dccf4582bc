"""Which meter is found: measured before estimated, for the engine's device, or none at all."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from energy_cases import a_calibration
from metering_cases import ScriptedSource

from metering.energy import EnergySettings, open_meter, opening, shown_uj
from metering.energy.opening import policy_of
from metering.errors import InvalidEnergySettings, SourceUnavailable
from metering.events import EnergyClass

COSTS = {
    "step_fixed_cost": 4,
    "prefill_token_cost": 3,
    "verified_node_cost": 2,
    "kv_read_cost": 1,
}


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
    for source in ("nvml", "nvml_power", "gpu_time", "rapl"):
        settings = EnergySettings(source=source, powercap_root=str(tmp_path))
        with pytest.raises(SourceUnavailable):
            open_meter(settings, os.getpid())


def test_what_work_costs_is_configured_or_calibrated_or_said_to_be_a_default() -> None:
    calibrated = a_calibration()
    for settings, calibration, weights in (
        (EnergySettings(), None, "default"),
        (EnergySettings(), calibrated, calibrated.id),
        (EnergySettings(**COSTS), calibrated, "configured"),
        (EnergySettings(attribution="token-weighted/1"), calibrated, "none"),
    ):
        policy = policy_of(settings, calibration)
        assert (policy.method, policy.weights) == (settings.attribution, weights)


def test_a_group_is_metered_in_one_scope_or_closed_again() -> None:
    opened: list[ScriptedSource] = []

    def opener(board: str) -> ScriptedSource:
        opened.append(ScriptedSource(device=board))
        if board == "b":
            scope = msgspec.structs.replace(opened[-1].provenance, scope="gpu_module")
            opened[-1].provenance = scope
        return opened[-1]

    assert [each.provenance.device for each in opening._group(opener, ["a", "c"])] == ["a", "c"]
    with pytest.raises(SourceUnavailable, match="a,b are metered in different scopes"):
        opening._group(opener, ["a", "b"])
    assert [each.closed for each in opened] == [False, False, True, True]


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
        {"gpu_idle_w": -1.0},
        {"grid_gco2e_per_kwh": float("inf")},
        {"attribution": "by-guess/1"},
        {"source": "replay"},
        {"replay_trace": "trace.jsonl"},
        {"kv_read_cost": 1},
        {**COSTS, "kv_read_cost": -1},
        {**COSTS, "prefill_token_cost": 0, "verified_node_cost": 0, "kv_read_cost": 0},
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
