"""The NVML stub: built once with the system's compiler, loaded by the real pynvml elsewhere.

pynvml opens `libnvidia-ml.so.1` by name and reads no variable, so the stub is found through
LD_LIBRARY_PATH, in a process of its own: inside this one it could pass for a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("nvml_stub.c")


def build_nvml_stub(folder: Path) -> Path:
    """Compile the stub into a folder; a machine without a compiler fails the test."""
    compiler = shutil.which("cc")
    assert compiler is not None, "testing NVML without a GPU needs a C compiler (`cc`)"
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    subprocess.run([*command, soname, "-o", str(library), str(SOURCE)], check=True)
    return folder


def run_on_stub(
    folder: Path, boards: Sequence[str], code: str, variables: Mapping[str, str] | None = None
) -> Any:
    """Run Python code on a machine with these boards; returns what it prints, as JSON.

    `variables` of the environment are its alone: none of CUDA's is taken over.
    """
    scenario = folder / "scenario.txt"
    scenario.write_text("\n".join(boards) + "\n")
    inherited = {name: value for name, value in os.environ.items() if name[:5] != "CUDA_"}
    environment = inherited | {
        "LD_LIBRARY_PATH": str(folder),
        "NVML_STUB_SCENARIO": str(scenario),
        **(variables or {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
