"""Every kernel compiles to machine code for Ampere, Ada and Hopper, where no GPU is at hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton_ahead

KIB = 1024
# what a block may have at most, from NVIDIA's table of compute capabilities
SHARED_BYTES = {"80": 163 * KIB, "89": 99 * KIB, "90": 227 * KIB}
TARGETS = {"80": "sm_80", "89": "sm_89", "90": "sm_90a"}
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What became of each kernel, by capability."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    cache = tmp_path_factory.mktemp("compiled")
    done = subprocess.run(
        [sys.executable, triton_ahead.__file__, *TARGETS],
        cwd=ROOT,
        env=environment | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("capability", TARGETS)
@pytest.mark.parametrize("launch", triton_ahead.LAUNCHES)
def test_a_kernel_compiles_for_its_target_within_its_shared_memory(compiled, capability, launch):
    found = compiled[capability][launch]
    assert found["target"] == [TARGETS[capability]]
    assert 0 < found["shared_bytes"] <= SHARED_BYTES[capability]
    assert found["machine_code_bytes"] > 1000


@pytest.mark.parametrize("launch", ["bf16", "int8", "int4", "attention 9/3 x 64"])
def test_products_take_one_instruction_on_every_target_and_load_ahead(compiled, launch):
    """Sixteen rows high: the same whether a step has one row or sixty-four."""
    for capability in TARGETS:
        found = compiled[capability][launch]
        assert found["products"] == ["mma.sync m16n8k16"]
        assert found["copies_ahead"]
