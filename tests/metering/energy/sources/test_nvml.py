"""NVML's energy counter through the real pynvml, on boards that a stub plays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from metering_nvml import build_nvml_stub, run_on_stub

READ = """
import json
from metering.energy.sources import NvmlTotalEnergy
from metering.errors import SourceUnavailable

said = []
try:
    source = NvmlTotalEnergy({board!r})
    said.append([source.provenance.device, source.name, source.driver_version])
    for _ in range({count}):
        try:
            said.append(source.read().own_uj)
        except SourceUnavailable as error:
            said.append(str(error))
    source.close()
except SourceUnavailable as error:
    said.append(str(error))
print(json.dumps(said))
"""

METER = """
import json, os, time
from metering.energy import EnergySettings, open_meter

meter = open_meter(EnergySettings(sample_period_ms=5), os.getpid(), "cuda:0")
meter.start()
while (meter.known_until_ns or 0) - (meter.known_from_ns or 0) < 300_000_000:
    time.sleep(0.01)
meter.close()
start_ns, end_ns = meter.known_from_ns, meter.known_until_ns
[segment] = meter.segments(start_ns, end_ns)
said = meter.provenance
watts = segment.own_uj * 1000 / (end_ns - start_ns)
print(json.dumps([said.energy_class, said.source, said.scope, said.device, watts]))
"""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_nvml_stub(tmp_path_factory.mktemp("nvml"))


def read(stub: Path, boards: list[str], board: str = "0", count: int = 3) -> Any:
    return run_on_stub(stub, boards, READ.format(board=board, count=count))


def test_millijoules_are_read_as_microjoules(stub: Path) -> None:
    # The first entry answers the probe that finds the counter.
    said = read(stub, ["GPU-a 0 script 5 7 7 12"])
    assert said == [["GPU-a", "Stub Board", "999.1"], 7000, 7000, 12000]


def test_a_board_is_found_by_its_uuid_too(stub: Path) -> None:
    said = read(stub, ["GPU-a 0 script 1", "GPU-b 0 script 2"], board="GPU-b", count=1)
    assert said == [["GPU-b", "Stub Board", "999.1"], 2000]


def test_a_board_without_a_counter_is_refused(stub: Path) -> None:
    assert read(stub, ["GPU-a 0 script unsupported"]) == [
        "NVML board 0 has no energy counter: Not Supported"
    ]


def test_a_board_split_by_mig_is_refused(stub: Path) -> None:
    [said] = read(stub, ["GPU-a 1 script 1"])
    assert "split by MIG" in said


def test_a_board_that_is_not_there_is_refused(stub: Path) -> None:
    assert read(stub, ["GPU-a 0 script 1"], board="3") == [
        "NVML board 3 has no energy counter: Invalid Argument"
    ]
    assert read(stub, ["GPU-a 0 script 1"], board="GPU-z") == [
        "NVML board GPU-z has no energy counter: Not Found"
    ]


def test_a_board_that_is_lost_says_so_and_may_come_back(stub: Path) -> None:
    said = read(stub, ["GPU-a 0 script 1 2 lost 9"])
    assert said[1:] == [2000, "the GPU's energy counter is lost: GPU is lost", 9000]


def test_a_meter_on_a_coarse_counter_measures_its_power(stub: Path) -> None:
    energy_class, source, scope, device, watts = run_on_stub(
        stub, ["GPU-a 0 watts 250000 20"], METER
    )
    assert (energy_class, source) == ("measured", "nvml_total_energy")
    assert (scope, device) == ("gpu_board", "GPU-a")
    assert watts == pytest.approx(250, rel=0.5)


def test_without_the_library_there_is_no_nvml(tmp_path: Path) -> None:
    [said] = run_on_stub(tmp_path, [], READ.format(board="0", count=0))
    assert said.startswith("NVML cannot be used")
