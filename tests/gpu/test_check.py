"""The check that a GPU is given runs to its end without one, and holds where there is one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
CHECK = Path(__file__).with_name("check.py")


def checked(interpreted: str) -> dict:
    """Run the check in a process of its own; return its report."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "support")])
    done = subprocess.run(
        [sys.executable, "-W", "error", str(CHECK)],
        env=os.environ | {"TRITON_INTERPRET": interpreted, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr or done.stdout
    return json.loads(done.stdout.splitlines()[-1])


def test_a_dry_run_finds_every_kernel_and_backend_in_order():
    report = checked("1")
    assert report["ok"] is report["dry_run"] is True
    kinds = {entry["kernel"].split()[0].rstrip(":,") for entry in report["kernels"]}
    assert kinds == {"bf16", "int8", "int4", "attention", "statistics", "norm"}
    (decoded,) = report["models"]
    assert decoded["same_bits"] == {"together": True, "drafted": True}
    assert decoded["steps_drafted"] < decoded["steps_together"]  # drafts were right now and then


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_everything_holds_on_a_gpu():
    assert checked("0")["ok"] is True
