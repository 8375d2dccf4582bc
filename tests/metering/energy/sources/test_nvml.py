"""NVML through the real pynvml, on boards that a stub plays, in a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from metering_nvml import build_nvml_stub, run_on_stub

READ = """
import json
from metering.energy.sources import GpuTimeEstimate, NvmlPowerIntegral, NvmlTotalEnergy
from metering.errors import SourceUnavailable

said = []
for opened in {opened}:
    try:
        source = opened()
        how = source.provenance
        said.append([how.energy_class, how.source, how.scope, how.device])
        for _ in range({count}):
            try:
                reading = source.read()
                said.append([reading.own_uj, reading.external_uj, reading.origin])
            except SourceUnavailable as error:
                said.append(str(error))
        source.close()
    except SourceUnavailable as error:
        said.append(str(error))
print(json.dumps(said))
"""
METER = """
import json, os, time
from metering import clock
from metering.energy import EnergySettings, open_meter

meter = open_meter(EnergySettings(nvml_device={boards!r}, sample_period_ms=20), os.getpid(), "cuda")
meter.start()
meter.watch()  # as while requests run
until_ns = clock.monotonic_ns() + {ms} * 10**6
while clock.monotonic_ns() < until_ns:
    time.sleep(0.01)
meter.close()
said = meter.provenance
segments = meter.segments(0, 2**62)
print(json.dumps({{
    "class": said.energy_class, "source": said.source, "scope": said.scope,
    "devices": said.devices, "period_ms": said.update_period_us and said.update_period_us / 1000,
    "epochs": [segment.epoch.partition("/")[2] for segment in segments],
    "watts": [segment.own_uj * 1000 / (segment.end_ns - segment.start_ns) for segment in segments],
    "until_ms": (until_ns - meter.known_until_ns) / 1e6,
}}))
"""
A_COUNTER = ["measured", "nvml_total_energy", "gpu_board", "GPU-a"]


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml_stub(tmp_path_factory.mktemp("nvml"))


def read(stub: Path, boards: list[str], *opened: str, count: int = 3) -> Any:
    sources = ", ".join(f"lambda: {each}" for each in opened)
    return run_on_stub(stub, boards, READ.format(opened=f"[{sources}]", count=count))


def meter(stub: Path, *lines: str, boards: str = "0", ms: int = 700) -> Any:
    return run_on_stub(stub, lines, METER.format(boards=boards, ms=ms))


def test_a_board_is_read_in_microjoules_and_found_by_index_or_uuid(stub: Path) -> None:
    # The first entry answers the probe that finds the counter.
    said = read(
        stub,
        ["GPU-a energy=script:5,7,7,12", "GPU-b energy=script:1,2"],
        "NvmlTotalEnergy('0')",
        "NvmlTotalEnergy('GPU-b')",
    )
    assert said[:4] == [A_COUNTER, [7000, 0, 0], [7000, 0, 0], [12000, 0, 0]]
    assert said[4:6] == [["measured", "nvml_total_energy", "gpu_board", "GPU-b"], [2000, 0, 0]]


def test_what_cannot_be_metered_is_refused_and_says_why(stub: Path) -> None:
    said = read(
        stub,
        ["GPU-a energy=script:unsupported", "GPU-b energy=script:1 mig=MIG-b:2:7"],
        "NvmlTotalEnergy('0')",
        "NvmlPowerIntegral('0')",
        "GpuTimeEstimate('0', 50.0, 200.0)",
        "NvmlTotalEnergy('1')",
        "NvmlTotalEnergy('3')",
        "NvmlTotalEnergy('GPU-z')",
    )
    assert said[0] == "GPU GPU-a does not answer: Not Supported"
    assert said[1].startswith("no power of the GPU or its module is told")
    assert said[2] == "GPU GPU-a does not answer: Not Supported"
    assert "split by MIG" in said[3]
    assert "(MIG-...)" in said[3]
    assert said[4] == "NVML board 3 cannot be used: Invalid Argument"
    assert said[5] == "NVML board GPU-z cannot be used: Not Found"


def test_a_board_that_was_lost_comes_back_with_another_origin(stub: Path) -> None:
    """Even where its counter has passed what it once said: nothing is taken across."""
    said = read(stub, ["GPU-a energy=script:1,2,lost,9,9"], "NvmlTotalEnergy('0')")
    assert said[1:] == [
        [2000, 0, 0],
        "GPU GPU-a does not answer: GPU is lost",
        [9000, 0, 1],
    ]


def test_of_a_mig_instance_there_is_an_estimate_by_slices(stub: Path) -> None:
    said = read(stub, ["GPU-a energy=script:0,700 mig=MIG-x:2:7"], "NvmlTotalEnergy('MIG-x')")
    assert said[:2] == [
        ["estimated", "nvml_total_energy", "mig_slices", "MIG-x"],
        [200_000, 500_000, 0],
    ]


@pytest.mark.parametrize(
    ("tells", "scope"),
    [("gpu_mw=90000", "gpu_board"), ("power=80000", "gpu_board"), ("module_mw=7", "gpu_module")],
)
def test_power_is_of_the_narrowest_scope_that_is_told(stub: Path, tells: str, scope: str) -> None:
    [said] = read(stub, [f"GPU-a {tells}"], "NvmlPowerIntegral('0')", count=0)
    assert said == ["measured", "nvml_power_integral", scope, "GPU-a"]


def test_a_power_that_no_board_draws_is_not_added_up(stub: Path) -> None:
    said = read(stub, ["GPU-a power=4294967 limit=400000"], "NvmlPowerIntegral('0')", count=1)
    assert said[1:] == ["a power of 4294967 mW is beyond the board's limit"]
    [_, module] = read(
        stub, ["GPU-a module_mw=600000 limit=400000"], "NvmlPowerIntegral('0')", count=1
    )
    assert module[1:] == [0, 0], "a module holds more than its board"


def test_a_counter_gives_its_power_and_its_period(stub: Path) -> None:
    said = meter(stub, "GPU-a energy=watts:250000:40")
    assert [said["class"], said["source"], said["scope"]] == A_COUNTER[:3]
    assert said["devices"] == ["GPU-a"]
    assert said["epochs"] == ["0"]
    assert said["watts"] == [pytest.approx(250, rel=0.3)]
    assert 20 < said["period_ms"] < 400, "a busy machine misses moves, and makes up none"


def test_power_is_added_up_where_there_is_no_counter(stub: Path) -> None:
    said = meter(stub, "GPU-a power=180000", ms=300)
    assert (said["class"], said["source"]) == ("measured", "nvml_power_integral")
    assert said["watts"] == [pytest.approx(180, rel=0.001)]
    assert said["period_ms"] is None


def test_load_by_configured_watts_is_an_estimate(stub: Path) -> None:
    said = meter(stub, "GPU-a load=50", ms=300)
    assert (said["class"], said["source"]) == ("estimated", "gpu_time")
    assert said["watts"] == [pytest.approx(60 + 240 / 2, rel=0.001)]


def test_a_group_is_the_sum_of_its_boards(stub: Path) -> None:
    lines = ("GPU-a energy=watts:250000:20", "GPU-b energy=watts:150000:30")
    said = meter(stub, *lines, boards="0,1")
    assert said["devices"] == ["GPU-a", "GPU-b"]
    assert said["epochs"] == ["0-0"]
    assert said["watts"] == [pytest.approx(400, rel=0.3)]
    assert 15 < said["period_ms"] < 300


def test_a_group_is_metered_in_one_way_or_not_at_all(stub: Path) -> None:
    """Both tell their load, so that is what they are estimated by; no counter is mixed with it."""
    lines = ("GPU-a energy=watts:250000:20 load=100", "GPU-b load=0")
    said = meter(stub, *lines, boards="0,1", ms=200)
    assert (said["class"], said["source"]) == ("estimated", "gpu_time")
    assert said["watts"] == [pytest.approx(60 + 240 + 60, rel=0.001)]


@pytest.mark.parametrize("fault", ["reset=350", "jump=350"])
def test_nothing_is_taken_across_a_reset_or_an_impossible_jump(stub: Path, fault: str) -> None:
    said = meter(stub, f"GPU-a energy=watts:250000:20:{fault} limit=300000", ms=800)
    assert said["epochs"] == ["0", "1"]
    assert said["watts"] == [pytest.approx(250, rel=0.3)] * 2


def test_a_counter_that_stands_still_is_not_known_from_there_on(stub: Path) -> None:
    said = meter(stub, "GPU-a energy=watts:250000:20:stuck=300", ms=700)
    assert said["watts"] == [pytest.approx(250, rel=0.3)]
    assert said["until_ms"] > 300


def test_without_the_library_there_is_no_nvml(tmp_path: Path) -> None:
    [said] = read(tmp_path, [], "NvmlTotalEnergy('0')", count=0)
    assert said.startswith("NVML cannot be used")
