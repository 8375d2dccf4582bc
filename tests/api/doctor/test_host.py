"""Findings about the machine follow from what it says of itself, and name the remedy."""

from __future__ import annotations

from pathlib import Path

import pynvml
import pytest

from api.doctor import host
from api.doctor.findings import Level


@pytest.mark.parametrize(
    ("gpus", "value", "level"),
    [
        (0, "1024", Level.OK),
        (1, "262143", Level.FAIL),
        (1, "262144", Level.OK),
        (1, "soup", Level.WARN),
    ],
)
def test_the_kernels_reserve_matters_where_there_is_a_gpu(
    gpus: int, value: str, level: Level, tmp_path: Path
) -> None:
    setting = tmp_path / "min_free_kbytes"
    setting.write_text(value)
    assert host.min_free_kbytes(gpus, setting).level is level


@pytest.mark.parametrize(
    ("code", "level"),
    [
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, Level.OK),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, Level.OK),
        (pynvml.NVML_ERROR_NO_PERMISSION, Level.WARN),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, Level.WARN),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, Level.WARN),
    ],
)
def test_an_error_of_nvml_is_explained(code: int, level: Level) -> None:
    finding = host.judge_nvml(pynvml.NVMLError(code))
    assert finding.level is level
    assert bool(finding.advice) is (level is not Level.OK)


def test_nvml_answers_on_any_machine() -> None:
    count, finding = host.nvml()
    assert count >= 0
    assert finding.check == "nvml"


def test_without_rapl_the_estimate_is_named(tmp_path: Path) -> None:
    finding = host.rapl(tmp_path)
    assert finding.level is Level.WARN
    assert "DFLASH_ENERGY__CPU_IDLE_W" in str(finding.advice)


def test_a_readable_counter_passes(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("12345\n")
    assert host.rapl(tmp_path).level is Level.OK


def test_a_counter_that_cannot_be_read_is_explained(tmp_path: Path) -> None:
    (tmp_path / "intel-rapl:0" / "energy_uj").mkdir(parents=True)  # unreadable even for root
    finding = host.rapl(tmp_path)
    assert finding.level is Level.WARN
    assert "root" in finding.found


@pytest.mark.parametrize(
    ("free_mib", "level"), [(800, Level.FAIL), (1_300, Level.WARN), (4_000, Level.OK)]
)
def test_memory_is_measured_against_the_model(free_mib: int, level: Level) -> None:
    model = 500 << 20
    assert host.memory(model, free_mib << 20).level is level


@pytest.mark.parametrize(
    ("free_mib", "level"), [(100, Level.FAIL), (1_000, Level.WARN), (9_000, Level.OK)]
)
def test_disk_room_is_needed(free_mib: int, level: Level, tmp_path: Path) -> None:
    assert host.disk(tmp_path, free_mib << 20).level is level


def test_a_home_that_cannot_be_written_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    finding = host.disk(tmp_path)
    assert (finding.level, "can't be written" in finding.found) == (Level.FAIL, True)


def test_the_disk_of_a_home_that_is_not_there_yet_is_its_parents(tmp_path: Path) -> None:
    assert "GiB free" in host.disk(tmp_path / "not" / "yet").found


@pytest.mark.parametrize(
    ("wanted", "quota", "level"),
    [
        (1, "max 100000", Level.OK),
        (2, "100000 100000", Level.WARN),
        (None, "50000 100000", Level.WARN),
    ],
)
def test_threads_beyond_the_quota_wait_for_each_other(
    wanted: int | None, quota: str, level: Level, tmp_path: Path
) -> None:
    cpu_max = tmp_path / "cpu.max"
    cpu_max.write_text(quota)
    assert host.threads(wanted, cpu_max).level is level


def test_more_threads_than_processors_are_named(tmp_path: Path) -> None:
    finding = host.threads(10_000, tmp_path / "absent")
    assert finding.level is Level.WARN
    assert "DFLASH_ENGINE__THREADS=" in str(finding.advice)
