"""The decoder on Triton's kernels, in their interpreter; and that nothing else knows of Triton."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gguf
import pytest
import torch
from dense_llama import DenseLlama
from packed_steps import Request, Rows, int64
from tiny_models import TinyShape, write_tiny_dfm, write_tiny_gguf

from engine.dfm.conversion import convert_gguf
from engine.errors import InvalidConfig
from engine.model.decoder import Decoder
from engine.model.loading import load_decoder
from engine.model.rows import StepRows

GIVEN = {  # how a file's weights are kept, and the backend that takes them as they are
    "bf16": (gguf.GGMLQuantizationType.F32, "f32"),
    "int8": (gguf.GGMLQuantizationType.Q8_0, "q8"),
    "int4": (gguf.GGMLQuantizationType.Q4_1, "q4"),
}
LOST = {"bf16": 0.02, "int8": 0.015, "int4": 0.015}
ON_A_CPU = """
import sys, torch
from engine.errors import UnsupportedModel
from engine.model.decoder import Decoder
from engine.model.rows import Segment, StepRows
decoder = Decoder.load(sys.argv[1], threads=1, kv_tokens=16)
one = torch.tensor([0])
decoder.forward(StepRows(one, one, one, (Segment(one[:0], one[None]),), one))
assert not [name for name in sys.modules if name.partition(".")[0] == "triton"]
try:
    Decoder.load(sys.argv[1], backend="int4")
except UnsupportedModel as error:
    print(error)
"""


@pytest.mark.parametrize("backend", GIVEN)
def test_logits_agree_with_full_attention_over_the_whole_sequence(tmp_path, backend):
    """Within bfloat16, which embeddings, keys and values are rounded to."""
    quantisation, kept = GIVEN[backend]
    shape = TinyShape(heads=4, kv_heads=2, biases=True, tied_embeddings=False)
    source = write_tiny_gguf(tmp_path / "tiny.gguf", shape, quantisation=quantisation)
    path = convert_gguf(source, tmp_path / "tiny.dfm", quant_type=kept)
    decoder = Decoder.load(path, backend=backend, threads=1, kv_tokens=128)
    tokens = torch.randint(269, (70,), generator=torch.Generator().manual_seed(3)).tolist()
    chosen = random.Random(1)
    slots = chosen.sample(range(128), len(tokens))
    found = []
    for start in range(0, len(tokens), 35):
        own = slice(start, start + 35)
        parents = list(range(-1, 34))
        rows = Rows(Request(tokens[:start], slots[:start]), tokens[own], parents, slots[own])
        positions = torch.arange(start, start + 35)
        step = StepRows(
            *(int64(tokens[own]), positions, int64(slots[own])),
            *((rows.segment(),), torch.arange(35)),
        )
        found.append(decoder.forward(step))
    expected = DenseLlama(source).logits(tokens)
    assert (torch.cat(found) - expected).norm() < LOST[backend] * expected.norm()


def test_a_cpu_imports_no_triton_and_refuses_its_backends(tmp_path):
    path = write_tiny_dfm(tmp_path / "tiny.dfm")
    root = Path(__file__).parents[3]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", ON_A_CPU, str(path)],
        cwd=root,
        env=environment | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "backend 'int4' computes on CUDA devices, not on cpu\n"


def test_a_gpu_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InvalidConfig, match="'cuda:0': torch finds no CUDA device"):
        load_decoder(tmp_path / "any.dfm", device="cuda:0")


@pytest.mark.parametrize("backend", GIVEN)
def test_a_gpu_takes_the_weights_as_the_file_has_them(tmp_path, backend, monkeypatch):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", quantisation=GIVEN[backend][0])
    path = convert_gguf(source, tmp_path / "tiny.dfm", quant_type=GIVEN[backend][1])
    asked = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Decoder, "load", lambda path, **options: asked.update(options))
    load_decoder(path, device="cuda:0")
    assert (asked["backend"], asked["device"]) == (backend, "cuda:0")


def test_a_gpu_is_known_by_the_uuid_that_cuda_says_where_it_says_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = {0: SimpleNamespace(uuid="AB12-CD"), 1: SimpleNamespace()}
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: said[device.index])
    uuids = [
        Decoder.device_uuid.fget(SimpleNamespace(_device=torch.device(device)))
        for device in ("cuda:0", "cuda:1", "cpu")
    ]
    assert uuids == ["ab12-cd", None, None]
