"""`dflash meter`: what answers here, a trace of it, and what metering takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from energy_cases import a_trace

from api.meter_cli import meter
from metering import overhead
from metering.cli_context import CliContext
from metering.energy import traces


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliContext:
    """A machine without RAPL."""
    monkeypatch.setenv("DFLASH_ENERGY__POWERCAP_ROOT", str(tmp_path / "none"))
    return CliContext(tmp_path, f"sqlite:///{tmp_path / 'gateway.db'}")


def run(context: CliContext, *arguments: str) -> str:
    done = CliRunner().invoke(meter, arguments, obj=context, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_each_source_says_what_it_is_or_why_it_is_not(context: CliContext) -> None:
    found = {each["source"]: each for each in json.loads(run(context, "sources", "--json"))}
    assert found["cpu_time"]["answers"]
    assert (found["cpu_time"]["class"], found["cpu_time"]["scope"]) == ("estimated", "process")
    assert not found["rapl"]["answers"]
    assert "no RAPL package zone" in found["rapl"]["reason"]
    assert "rapl        - no RAPL package zone" in run(context, "sources")


def test_what_is_recorded_can_be_played(
    context: CliContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    run(context, "record", str(first), "--seconds", "0.15")
    assert traces.read(first).provenance.source == "cpu_time"
    monkeypatch.setenv("DFLASH_ENERGY__SOURCE", "replay")
    steady = a_trace(tmp_path / "steady.jsonl", [(0, 0), (1000, 10)])
    monkeypatch.setenv("DFLASH_ENERGY__REPLAY_TRACE", str(steady))
    run(context, "record", str(second), "--seconds", "0.15")
    assert traces.read(second).provenance.source == "replay:nvml_total_energy"


@pytest.mark.parametrize("pid", ["0", "-1"])
def test_a_process_is_named_by_a_number_that_one_can_have(
    context: CliContext, tmp_path: Path, pid: str
) -> None:
    path = tmp_path / "trace.jsonl"
    done = CliRunner().invoke(meter, ["record", str(path), f"--pid={pid}"], obj=context)
    assert done.exit_code == 2
    assert "--pid" in done.output
    assert not path.exists()


def test_what_metering_takes_is_told_part_by_part(
    context: CliContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "MEASURING_S", 0.0)
    small = ("--requests", "2", "--tokens", "16", "--repeats", "1", "--sampler-seconds", "0.1")
    figures = json.loads(run(context, "bench", *small, "--json").splitlines()[-1])
    parts = figures["us_per_token"]
    metered = [parts[name] for name in ("segmenter", "confidence", "recording", "attribution")]
    assert sum(metered) == pytest.approx(parts["the meter"], abs=0.01)
    assert min(parts["segmenter"], parts["attribution"], parts["durable write, apart"]) > 0
    # A hundred tokens a second: a microsecond per token is a hundredth of a per cent.
    share = figures["engine_share_pct"]["the meter"]
    assert share == pytest.approx(parts["the meter"] / 100, abs=0.001)
    assert 0 <= figures["sampler_core_pct"] < 100
    assert "the sampler (cpu_time)" in run(context, "bench", *small)
