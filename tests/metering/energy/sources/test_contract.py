"""What every energy source owes its meter. NVML keeps the same promises in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from energy_cases import a_trace

from metering.energy.protocols import EnergySource
from metering.energy.sources import CpuTimeEstimate, RaplPowercap, TraceReplay, Unmetered
from metering.errors import SourceUnavailable
from metering.events import EnergyClass


def cpu_time(_: Path) -> EnergySource:
    return CpuTimeEstimate(os.getpid(), 10.0, 10.0)


def rapl(root: Path) -> EnergySource:
    zone = root / "intel-rapl:0"
    zone.mkdir()
    for name, value in (("name", "package-0"), ("max_energy_range_uj", "1000"), ("energy_uj", "5")):
        (zone / name).write_text(value)
    return RaplPowercap(root, os.getpid())


def unmetered(_: Path) -> EnergySource:
    return Unmetered("there is none")


def replay(root: Path) -> EnergySource:
    return TraceReplay(a_trace(root / "trace.jsonl", [(0, 5), (1000, 9), (3000, 9), (7000, 40)]))


OPENERS = {"cpu_time": cpu_time, "rapl": rapl, "replay": replay, "unmetered": unmetered}


@pytest.fixture(params=OPENERS)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> EnergySource:
    opener: Callable[[Path], EnergySource] = OPENERS[request.param]
    return opener(tmp_path)


def test_totals_and_their_times_never_fall(source: EnergySource) -> None:
    if source.provenance.energy_class is EnergyClass.UNAVAILABLE:
        with pytest.raises(SourceUnavailable):
            source.read()
        return
    readings = [source.read() for _ in range(20)]
    for totals in zip(*readings, strict=True):
        assert list(totals) == sorted(totals)


def test_its_figures_say_how_they_were_had(source: EnergySource) -> None:
    said = source.provenance
    is_metered = said.energy_class is not EnergyClass.UNAVAILABLE
    assert (said.source != "none") is is_metered
    assert (said.scope != "none") is is_metered
    assert (said.uncertainty_pct is not None) is is_metered
    assert said.device
    assert len(said.device) <= 100, "it has to fit its column"


def test_it_can_be_closed(source: EnergySource) -> None:
    source.close()
