"""Installed versions are judged by what is pinned, and cuBLAS by the file that was loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from api.doctor.findings import Finding, Level
from api.doctor.software import (
    LoadedCuda,
    cuda,
    judge_cuda,
    kernels,
    packages,
    pins,
    python_version,
)

WHEEL = Path("/venv/lib/python3.11/site-packages/nvidia/cu13/lib")
SOUND = LoadedCuda(
    torch_cuda="13.0",
    wheel_version="13.1.1.3",
    required_version="13.1.1.3",
    cublas=WHEEL / "libcublas.so.13",
    cublas_lt=WHEEL / "libcublasLt.so.13",
    capabilities=((9, 0),),
)


@pytest.mark.parametrize(
    ("version", "level"),
    [((3, 10), Level.FAIL), ((3, 11), Level.OK), ((3, 12), Level.OK), ((3, 13), Level.FAIL)],
)
def test_only_tested_pythons_pass(version: tuple[int, int], level: Level) -> None:
    assert python_version(version).level is level


def test_this_environment_meets_its_pins() -> None:
    assert packages().level is Level.OK


def test_a_build_tag_is_the_same_release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda _: ["torch==2.13.0"])
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.13.0+cpu")
    assert packages().level is Level.OK


@pytest.mark.parametrize(
    ("requirement", "level"), [("torch==2.13.0", Level.FAIL), ("click==8.5.1", Level.WARN)]
)
def test_a_stray_version_is_named_with_its_remedy(
    requirement: str, level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.requires", lambda _: [requirement])
    monkeypatch.setattr("importlib.metadata.version", lambda _: "1.0")
    finding = packages()
    assert finding.level is level
    assert finding.advice == f"pip install {requirement}"


def test_only_exact_pins_outside_extras_count() -> None:
    lines = ["torch==2.13.0", "psycopg[binary]==3.3.9", "jinja2", "x==1; extra == 'dev'", "y~=1"]
    assert pins(lines) == {"torch": "2.13.0", "psycopg": "3.3.9"}


def test_without_a_gpu_cuda_is_no_matter() -> None:
    assert cuda(0, "cpu").level is Level.OK


def test_a_cuda_device_without_a_gpu_fails() -> None:
    assert cuda(0, "cuda:0").level is Level.FAIL


def judged(**changes: object) -> Finding:
    return judge_cuda(replace(SOUND, **changes))  # type: ignore[arg-type]


def test_a_sound_pair_passes() -> None:
    assert judged().level is Level.OK


def test_a_cpu_build_beside_a_gpu_is_a_waste_and_no_error() -> None:
    assert judged(torch_cuda=None).level is Level.WARN


def test_libraries_from_two_places_are_a_mixed_pair() -> None:
    finding = judged(cublas_lt=Path("/usr/local/cuda/lib64/libcublasLt.so.13"))
    assert finding.level is Level.FAIL
    assert "LD_LIBRARY_PATH" in str(finding.advice)


def test_a_system_cublas_in_place_of_torchs_own_fails() -> None:
    system = Path("/usr/local/cuda/lib64")
    finding = judged(cublas=system / "libcublas.so.13", cublas_lt=system / "libcublasLt.so.13")
    assert finding.level is Level.FAIL
    assert "instead of torch's own" in finding.found


def test_another_wheel_than_torch_pins_fails() -> None:
    assert judged(required_version="13.0.2.14").level is Level.FAIL


def test_a_torch_that_pins_no_cublas_is_taken_at_its_word() -> None:
    assert judged(required_version=None).level is Level.OK


@pytest.mark.parametrize(
    ("version", "capability", "level"),
    [
        ("12.1.3.1", (8, 0), Level.FAIL),
        ("12.9.1.4", (9, 0), Level.OK),
        ("12.9.1.4", (10, 0), Level.FAIL),
        ("13.1.0.3", (10, 0), Level.OK),
        ("13.5.1.27", (12, 0), Level.FAIL),
        ("13.5.1.27", (8, 6), Level.OK),
        ("13.5.1.28", (12, 0), Level.OK),
    ],
)
def test_a_known_bad_version_fails_on_the_gpus_it_is_bad_on(
    version: str, capability: tuple[int, int], level: Level
) -> None:
    finding = judged(wheel_version=version, required_version=version, capabilities=(capability,))
    assert finding.level is level


def test_no_cublas_at_all_fails() -> None:
    assert judged(cublas=None, cublas_lt=None).level is Level.FAIL


def test_kernels_that_could_not_be_compiled_are_missed_aloud(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/bin/g++" if name == "g++" else None)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert kernels("cpu", "auto").level is Level.OK
    monkeypatch.setattr("shutil.which", lambda _: None)
    finding = kernels("cpu", "auto")
    assert (finding.level, "no compiler" in finding.found) == (Level.WARN, True)
    assert kernels("cpu", "fp32").level is Level.OK
    assert kernels("cuda:0", "auto").level is Level.OK
