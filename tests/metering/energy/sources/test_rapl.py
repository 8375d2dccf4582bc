"""RAPL through a powercap tree made of files: which zones count, wraps, and lost permission."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from metering.energy.sources import RaplPowercap
from metering.energy.sources import rapl as rapl_module
from metering.errors import SourceUnavailable
from metering.events import EnergyClass

RANGE_UJ = 262_143_328_850


class Powercap:
    """A powercap tree; every zone is a folder of small files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def zone(self, name: str, label: str, energy_uj: int, range_uj: int = RANGE_UJ) -> Path:
        path = self.root / name
        path.mkdir()
        (path / "name").write_text(f"{label}\n")
        (path / "max_energy_range_uj").write_text(f"{range_uj}\n")
        self.set(name, energy_uj)
        return path

    def set(self, name: str, energy_uj: int) -> None:
        (self.root / name / "energy_uj").write_text(f"{energy_uj}\n")


class Clocks:
    """CPU time of the engine and of everybody, set by hand."""

    engine_ns = 0
    busy_ns = 0


@pytest.fixture
def powercap(tmp_path: Path) -> Powercap:
    return Powercap(tmp_path)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(rapl_module, "_busy_ns", lambda: clocks.busy_ns)
    monkeypatch.setattr(rapl_module.ProcessClock, "read_ns", lambda _: clocks.engine_ns)
    return clocks


@pytest.fixture
def opened(powercap: Powercap, clocks: Clocks) -> Callable[[], RaplPowercap]:
    return lambda: RaplPowercap(powercap.root, os.getpid())


def test_packages_count_and_their_parts_do_not(
    powercap: Powercap, opened: Callable[[], RaplPowercap]
) -> None:
    powercap.zone("intel-rapl:0", "package-1", 1000)
    powercap.zone("intel-rapl:0:0", "core", 1)
    powercap.zone("intel-rapl:1", "package-0", 5000)
    powercap.zone("intel-rapl:2", "psys", 9)
    powercap.zone("intel-rapl-mmio:0", "package-0", 7)
    source = opened()
    for name, energy_uj in (("intel-rapl:0", 1300), ("intel-rapl:1", 5050), ("intel-rapl:2", 99)):
        powercap.set(name, energy_uj)
    assert source.read().own_uj == 350
    assert source.provenance.energy_class is EnergyClass.MEASURED
    assert source.provenance.device == "cpu-packages:1,0"


def test_a_counter_that_wraps_goes_on(
    powercap: Powercap, opened: Callable[[], RaplPowercap]
) -> None:
    powercap.zone("intel-rapl:0", "package-0", RANGE_UJ - 100)
    source = opened()
    powercap.set("intel-rapl:0", 50)
    assert source.read().own_uj == 150


def test_a_read_that_fails_loses_no_energy(
    powercap: Powercap, opened: Callable[[], RaplPowercap]
) -> None:
    powercap.zone("intel-rapl:0", "package-0", 0)
    powercap.zone("intel-rapl:1", "package-1", 0)
    source = opened()
    powercap.set("intel-rapl:0", 10)
    (powercap.root / "intel-rapl:1" / "energy_uj").write_text("")
    with pytest.raises(SourceUnavailable, match="no number"):
        source.read()
    powercap.set("intel-rapl:1", 20)
    assert source.read().own_uj == 30


def test_other_processes_pay_by_cpu_time(
    powercap: Powercap, clocks: Clocks, opened: Callable[[], RaplPowercap]
) -> None:
    powercap.zone("intel-rapl:0", "package-0", 0)
    clocks.engine_ns, clocks.busy_ns = 500, 2000
    source = opened()
    clocks.engine_ns, clocks.busy_ns = 800, 2400  # we used 300, the others 100
    powercap.set("intel-rapl:0", 1000)
    reading = source.read()
    assert (reading.own_uj, reading.external_uj) == (750, 250)


def test_the_rounding_of_the_systems_clock_does_not_add_up(
    powercap: Powercap, clocks: Clocks, opened: Callable[[], RaplPowercap]
) -> None:
    powercap.zone("intel-rapl:0", "package-0", 0)
    source = opened()
    for tick in range(1, 101):
        clocks.engine_ns = tick * 1000
        clocks.busy_ns = tick * 1000 + (300 if tick % 2 else -300)
        powercap.set("intel-rapl:0", tick * 1000)
        reading = source.read()
    assert reading.own_uj + reading.external_uj == 100_000
    assert reading.external_uj < 300


def test_a_machine_without_rapl_says_so(opened: Callable[[], RaplPowercap]) -> None:
    with pytest.raises(SourceUnavailable, match="no RAPL package zone"):
        opened()


def test_a_counter_whose_range_is_unreadable_is_refused(
    powercap: Powercap, opened: Callable[[], RaplPowercap]
) -> None:
    (powercap.zone("intel-rapl:0", "package-0", 0) / "max_energy_range_uj").unlink()
    with pytest.raises(SourceUnavailable, match="max_energy_range_uj"):
        opened()


def test_missing_permission_is_explained(
    powercap: Powercap, opened: Callable[[], RaplPowercap], monkeypatch: pytest.MonkeyPatch
) -> None:
    powercap.zone("intel-rapl:0", "package-0", 0)
    read_text = Path.read_text

    def guarded(path: Path) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", guarded)
    with pytest.raises(SourceUnavailable, match="only be read by root"):
        opened()


def test_the_machines_cpu_time_is_that_of_more_than_one_process() -> None:
    assert rapl_module._busy_ns() > 0
