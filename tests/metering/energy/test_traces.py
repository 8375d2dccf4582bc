"""Recorded readings: written once, read back, and played again from now on."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from energy_cases import BOARD, a_trace
from metering_cases import ScriptedSource, WattSource

from metering import clock
from metering.energy import EnergyMeter, traces
from metering.energy.protocols import Reading
from metering.energy.sources import TraceReplay
from metering.errors import InvalidTrace, SourceUnavailable
from metering.events import EnergyClass


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    moment = [1000]
    monkeypatch.setattr(clock, "monotonic_ns", lambda: moment[0])
    return moment


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    count = traces.record(WattSource(), path, 0.05, 5)
    recorded = traces.read(path)
    assert len(recorded.entries) == count > 2
    first, last = recorded.entries[0], recorded.entries[-1]
    assert first.own_uj is not None
    assert last.own_uj is not None
    assert last.own_uj - first.own_uj == pytest.approx(last.offset_ns / 1000, abs=2)
    with pytest.raises(FileExistsError):
        traces.record(WattSource(), path, 0.01, 5)


def test_a_source_that_falls_silent_is_recorded_as_silent(tmp_path: Path) -> None:
    class Failing(ScriptedSource):
        left = 2

        def read(self) -> Reading:
            self.left -= 1
            if self.left < 0:
                raise SourceUnavailable("gone")
            return Reading(clock.monotonic_ns(), self.left, 0)

    path = tmp_path / "trace.jsonl"
    traces.record(Failing(), path, 0.03, 5)
    energies = [entry.own_uj for entry in traces.read(path).entries]
    assert energies[:3] == [1, 0, None]


def test_a_replay_is_the_same_energy_over_and_over_and_an_estimate(
    tmp_path: Path, now: list[int]
) -> None:
    source = TraceReplay(a_trace(tmp_path / "t", [(0, 100), (10, 150), (20, 400)]))
    assert source.provenance.energy_class is EnergyClass.ESTIMATED
    assert source.provenance.source == "replay:nvml_total_energy"
    meter = EnergyMeter(source)
    for now[0] in range(1000, 1101):
        meter.sample()
    [whole] = meter.segments(0, 2000)
    assert (whole.start_ns, whole.end_ns, whole.own_uj) == (1000, 1100, 5 * 300)
    assert [each.own_uj for each in meter.segments(1020, 1030)] == [50]


def test_gaps_and_resets_are_played_too(tmp_path: Path, now: list[int]) -> None:
    readings = [(0, 100), (10, 150), (20, None), (30, 5), (40, 9)]
    source = TraceReplay(a_trace(tmp_path / "t", readings, origins=[0, 0, 0, 1, 1]))
    meter = EnergyMeter(source)
    for now[0] in range(1000, 1080):
        meter.sample()
    # A second round begins where the first one ended, and its energy is of other epochs.
    energies = [(each.start_ns, each.end_ns, each.own_uj) for each in meter.segments(0, 2000)]
    assert energies == [(1000, 1010, 50), (1040, 1050, 50)]


def test_a_trace_of_no_device_is_refused(tmp_path: Path) -> None:
    """Its devices are what tells two replicas that they would be metered by one source."""
    for devices in ((), ("",), ("GPU-a", "")):
        nobodys = msgspec.structs.replace(BOARD, devices=devices)
        path = a_trace(tmp_path / "trace.jsonl", [(0, 1), (1, 2)], board=nobodys)
        with pytest.raises(InvalidTrace, match="which devices it is of"):
            TraceReplay(path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is no energy trace"),
        ("{}\n[0, 1, 0, 0]", "is no energy trace"),
        ("HEAD\n[0, 1, 0, 0]", "fewer than two"),
        ("HEAD\n[0, 1, 0, 0]\n[0, 2, 0, 0]", "order of time"),
        ("HEAD\n[5, 1, 0, 0]\n[6, 2, 0, 0]", "order of time"),
        ("HEAD\n[0, 1, 0, 0]\n[6, 2, null, 0]", "both totals or neither"),
    ],
)
def test_a_file_that_cannot_be_played_is_refused(tmp_path: Path, text: str, why: str) -> None:
    good = a_trace(tmp_path / "good", [(0, 1), (1, 2)]).read_text()
    path = tmp_path / "trace.jsonl"
    path.write_text(text.replace("HEAD", good.splitlines()[0]))
    with pytest.raises(InvalidTrace, match=why):
        TraceReplay(path)
