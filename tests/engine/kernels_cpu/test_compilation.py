"""The kernels are compiled once, and done without where they can't be."""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from block_models import SHAPES, write_block_dfm
from block_runtimes import NATIVE
from structlog.testing import capture_logs

from engine.kernels.cpu import compilation, library
from engine.kernels.cpu.compilation import CannotCompile, compiled_library
from engine.model.block_decoder import BlockDecoder


@pytest.fixture
def forgetful():
    """Opens the library anew, in the test and after it."""
    library.open_library.cache_clear()
    yield
    library.open_library.cache_clear()


def test_this_machine_computes_natively_if_it_has_a_compiler():
    able = platform.system() == "Linux" and platform.machine() == "x86_64"
    flags = Path("/proc/cpuinfo").read_text() if able else ""
    if "avx2" in flags and any(map(shutil.which, compilation.COMPILERS)):
        assert NATIVE
        assert NATIVE[-1] == "avx2"


@pytest.mark.usefixtures("forgetful")
def test_without_a_compiler_the_twin_computes_and_the_log_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    path = write_block_dfm(tmp_path / "tiny.dfm", SHAPES["heads of 16"])
    with capture_logs() as logs:
        decoder = BlockDecoder.load(path, kv_tokens=96)
    assert decoder.instruction_set == "twin"
    assert "g++" in logs[0]["reason"]


def test_another_kind_of_machine_is_told_so(monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(CannotCompile, match="riscv64"):
        compiled_library()


@pytest.mark.skipif(not NATIVE, reason="no compiler here")
def test_what_the_cache_has_is_not_compiled_again(monkeypatch, tmp_path):
    compiler = next(filter(None, map(shutil.which, compilation.COMPILERS)))
    built = tmp_path / f"{compilation._digest(compiler)}.so"
    built.write_bytes(b"")
    monkeypatch.setattr(compilation, "_build", lambda *_: pytest.fail("compiled"))
    assert compiled_library(tmp_path) == built


@pytest.mark.skipif(not NATIVE, reason="no compiler here")
def test_a_compiler_that_refuses_leaves_nothing_behind(monkeypatch, tmp_path):
    monkeypatch.setattr(compilation, "_FLAGS", ("--no-such-flag",))
    with pytest.raises(CannotCompile, match="no-such-flag"):
        compiled_library(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["compiling"]


@pytest.mark.skipif(not NATIVE, reason="no compiler here")
def test_a_variant_that_the_compiler_does_not_know_is_left_out(monkeypatch, tmp_path):
    asked = []

    def run(command):
        asked.append(command)
        if "-mamx-tile" in command:
            raise CannotCompile("unrecognised")
        return ""

    monkeypatch.setattr(compilation, "_run", run)
    compilation._build("g++", tmp_path)
    defined = {flag for command in asked for flag in command if flag.startswith("-DDFLASH_HAS")}
    assert defined == {
        "-DDFLASH_HAS_AVX2=1",
        "-DDFLASH_HAS_AVXVNNI=1",
        "-DDFLASH_HAS_AVX512VNNI=1",
    }


def test_a_folder_that_cannot_be_written_is_replaced_by_a_temporary_one(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert compilation._writable(blocked / "kernels").is_dir()


@pytest.mark.skipif(not NATIVE, reason="no compiler here")
def test_the_sources_compile_without_warnings():
    compiler = next(filter(None, map(shutil.which, compilation.COMPILERS)))
    flags = [*compilation._FLAGS, "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]
    for source in sorted(compilation.SOURCES.glob("*.cpp")):
        variant = [*compilation.VARIANTS["avx2"], "-DDFLASH_ISA=avx2"]
        subprocess.run([compiler, *flags, *variant, str(source)], check=True)
