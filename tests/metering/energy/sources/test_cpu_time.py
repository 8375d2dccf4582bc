"""The labelled estimate, on a process of this machine."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from metering import clock
from metering.energy.sources import CpuTimeEstimate, RaplPowercap
from metering.energy.sources import process_clock as process_clock_module
from metering.energy.sources.process_clock import ProcessClock
from metering.errors import SourceUnavailable
from metering.events import EnergyClass


def test_energy_is_idle_watts_by_wall_time_and_dynamic_watts_by_cpu_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall_ns = itertools.count(10**9, 10**9)
    cpu_ns = itertools.count(5 * 10**8, 5 * 10**8)
    monkeypatch.setattr(clock, "monotonic_ns", lambda: next(wall_ns))
    monkeypatch.setattr(ProcessClock, "read_ns", lambda _: next(cpu_ns))
    source = CpuTimeEstimate(os.getpid(), idle_w=3.0, dynamic_w=8.0)
    first, second = source.read(), source.read()
    assert second.at_ns - first.at_ns == 10**9
    assert second.own_uj - first.own_uj == 3_000_000 + 4_000_000
    assert second.external_uj == 0
    assert source.provenance.energy_class is EnergyClass.ESTIMATED
    assert source.provenance.uncertainty_pct == 40


def test_work_shows_in_the_clock_of_a_process() -> None:
    process_clock = ProcessClock(os.getpid())
    before_ns = process_clock.read_ns()
    while process_clock.read_ns() == before_ns:
        sum(range(10_000))
    assert process_clock.read_ns() > before_ns


def test_the_clock_falls_back_to_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "LINUX", False)
    process_clock = ProcessClock(os.getpid())
    times = psutil.Process().cpu_times()
    assert process_clock.read_ns() >= round((times.user + times.system) * 1e9)


@pytest.fixture(params=["a handle of its own", "pid and start time"])
def known_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two ways to know a process."""
    if request.param == "pid and start time":
        monkeypatch.delattr(os, "pidfd_open")
        monkeypatch.setattr(process_clock_module, "IDENTITY_CHECK_NS", 0)


@pytest.mark.usefixtures("known_by")
def test_a_process_that_is_gone_is_no_source() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    source = CpuTimeEstimate(child.pid, 1.0, 1.0)
    source.read()
    child.communicate(b"\n")
    with pytest.raises(SourceUnavailable, match="gone"):
        source.read()
    with pytest.raises(SourceUnavailable, match="cannot be observed"):
        CpuTimeEstimate(child.pid, 1.0, 1.0)


def test_a_pid_taken_over_by_another_process_is_no_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor does the CPU time of another process divide what the packages' counters say."""
    zone = tmp_path / "intel-rapl:0"
    zone.mkdir()
    for name, said in {"name": "package-0", "max_energy_range_uj": 9, "energy_uj": 5}.items():
        (zone / name).write_text(f"{said}\n")
    monkeypatch.delattr(os, "pidfd_open")  # a handle never comes to mean another
    sources = (CpuTimeEstimate(os.getpid(), 1.0, 1.0), RaplPowercap(tmp_path, os.getpid()))
    monkeypatch.setattr(process_clock_module, "IDENTITY_CHECK_NS", 0)
    for source in sources:
        source.read()
        source._cpu._created -= 1000
        with pytest.raises(SourceUnavailable, match="another process"):
            source.read()
