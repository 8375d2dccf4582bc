"""Mixtures of experts against `transformers`, and against themselves.

Goal: routing, weighting and summing are the families' own, and no row's result depends on others.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from block_models import chunk_of
from dense_llama import DenseLlama
from hypothesis import given, settings
from hypothesis import strategies as st
from mixtures import HASHED, MIXTURES, reference_logits
from packed_steps import OneByOne, Packer
from tiny_models import TinyShape, random_weights, write_tiny_gguf

from engine.dfm.container import ModelFile
from engine.dfm.conversion import convert_gguf
from engine.dfm.header import Experts
from engine.errors import InvalidModelFile, UnsupportedModel
from engine.kernels.cpu.library import open_library
from engine.model.experts import routed
from engine.model.loading import load_decoder

TOKENS = torch.randint(269, (60,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(
    scope="module",
    params=[("mixtral", "f32"), ("mixtral", "q4"), ("qwen2-moe", "q4"), ("hashed", "q8")],
    ids="-".join,
)
def model(request, tmp_path_factory):
    """A mixture's file."""
    name, quant_type = request.param
    shape = {**MIXTURES, "hashed": HASHED}[name]
    folder = tmp_path_factory.mktemp("mixture")
    source = write_tiny_gguf(folder / "tiny.gguf", shape)
    return convert_gguf(source, folder / "tiny.dfm", quant_type=quant_type)


@pytest.mark.parametrize("name", MIXTURES)
def test_a_mixture_has_the_logits_of_its_reference(tmp_path, name):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", MIXTURES[name])
    path = convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")
    expected = reference_logits(MIXTURES[name], TOKENS)
    logits = load_decoder(path, threads=1, kv_tokens=64).forward(chunk_of(TOKENS, 0, len(TOKENS)))
    assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1), requests=st.integers(1, 5))
def test_a_packed_row_has_the_bits_of_a_row_alone_whatever_is_at_hand(model, seed, requests):
    packed = load_decoder(model, threads=1, kv_tokens=1024, expert_cache_size=1 + seed % 8)
    # On some processors torch's own products depend on how many threads compute them.
    threads = 1 if packed.backend == "fp32" else 2
    standard = OneByOne(load_decoder(model, threads=threads, kv_tokens=16384))
    packer = Packer(
        packed,
        random.Random(seed),
        slots=1024,
        requests=requests,
        length=100,
        alphabet=packed.info.vocab_size,
    )
    assert packed.batch_invariant
    for step in packer.steps(4):
        for prefix, logits in step:
            assert torch.equal(logits, standard.logits(prefix)), len(prefix)


@settings(max_examples=60)
@given(st.data())
def test_a_row_is_routed_by_itself_and_ties_go_to_the_lowest(data):
    count = data.draw(st.integers(2, 70))
    shape = Experts(count, data.draw(st.integers(1, min(count, 8))), data.draw(st.booleans()))
    # few levels, so that there are ties
    levels = st.lists(st.integers(-3, 3), min_size=count, max_size=count)
    rows = data.draw(st.lists(levels, min_size=1, max_size=20))
    logits = torch.tensor(rows, dtype=torch.float32)
    chosen, weights = routed(logits, shape)
    for row, (own, own_weights) in enumerate(zip(chosen, weights, strict=True)):
        alone = routed(logits[row : row + 1], shape)
        assert torch.equal(own, alone[0][0])
        assert torch.equal(own_weights, alone[1][0])
        best = sorted(range(count), key=lambda expert: (-rows[row][expert], expert))
        assert own.tolist() == sorted(best[: shape.used])
        exact = torch.softmax(logits[row].double(), 0)[own]
        exact = exact / exact.sum() if shape.normalised else exact
        assert torch.allclose(own_weights.double(), exact, rtol=1e-5)


def test_a_mixture_in_blocks_is_near_its_exact_self(tmp_path):
    for name, shape in MIXTURES.items():
        source = write_tiny_gguf(tmp_path / "tiny.gguf", shape)
        path = convert_gguf(source, tmp_path / f"{name}.dfm", quant_type="q8")
        step = chunk_of(TOKENS, 0, len(TOKENS))
        exact = load_decoder(path, backend="fp32", threads=1, kv_tokens=64).forward(step)
        decoder = load_decoder(path, backend="block_linear", kv_tokens=64)
        assert decoder.backend == "block_linear"
        # where two experts are nearly tied another may be chosen, and the row is another
        off = (decoder.forward(step) - exact).abs().amax(1) / exact.abs().amax(1)
        assert off.median() < 0.02


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"backend": "int4"}, "'int4' on cpu"),
        ({"backend": "fp32", "device": "meta"}, "'fp32' on meta"),
        ({"backend": "block_linear"}, "--quant-type q4"),
        ({"backend": "block_linear", "device": "cuda:0"}, "on the CPU"),
        ({"backend": "blocks"}, "--quant-type q4"),
    ],
)
def test_a_backend_that_cannot_compute_a_mixture_says_so(tmp_path, arguments, why):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", MIXTURES["mixtral"])
    path = convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")
    with pytest.raises(UnsupportedModel, match=why):
        load_decoder(path, kv_tokens=16, **arguments)


def test_whole_steps_of_a_mixture_are_refused_and_left_to_what_can(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", MIXTURES["mixtral"])
    path = convert_gguf(source, tmp_path / "tiny.dfm", quant_type="q4")
    with pytest.raises(UnsupportedModel, match="block_linear"):
        load_decoder(path, backend="blocks", kv_tokens=16)
    native = open_library() is not None
    assert load_decoder(path, kv_tokens=16).backend == ("block_linear" if native else "fp32")


def test_a_hashed_layer_is_the_dense_one_that_its_table_names(tmp_path):
    """Given a table of one expert by token, a text of its tokens is a dense model's."""
    shape = TinyShape(experts=3, used=1, hashed=2, seed=5)
    weights = random_weights(shape)
    source = write_tiny_gguf(tmp_path / "tiny.gguf", shape)
    path = convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")
    decoder = load_decoder(path, threads=1, kv_tokens=64)
    for rest in range(3):
        dense = {name: values for name, values in weights.items() if "ffn_gate_" not in name}
        for layer in range(2):
            for part in ("gate", "up", "down"):
                stack = weights[f"blk.{layer}.ffn_{part}_exps.weight"]
                dense[f"blk.{layer}.ffn_{part}.weight"] = stack[(rest + layer) % 3]
        dense = {name: values for name, values in dense.items() if "_exps" not in name}
        plain = write_tiny_gguf(tmp_path / f"{rest}.gguf", weights=dense)
        tokens = [3 * number + rest for number in range(40)]
        expected = DenseLlama(plain).logits(tokens)
        logits = decoder.forward(chunk_of(tokens, 0, len(tokens)))
        assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()


def test_what_a_table_names_is_asked_of_the_disk_before_anything_is_computed(tmp_path, monkeypatch):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", HASHED)
    path = convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")
    decoder = load_decoder(path, threads=1, kv_tokens=16, expert_cache_size=1)
    events = []
    monkeypatch.setattr(ModelFile, "will_need", lambda _, name: events.append(name))
    attend = decoder._attend
    monkeypatch.setattr(decoder, "_attend", lambda *a: (events.append("attend"), attend(*a)))
    decoder.forward(chunk_of([8, 9], 0, 2))  # their experts are 2, 3 and 3, 4
    asked = events[: events.index("attend")]
    parts = ("down", "gate_up")
    names = [
        f"layers.0.mlp.experts.{expert}.{part}.weight" for expert in (2, 3, 4) for part in parts
    ]
    assert sorted(asked) == names


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (lambda table: table + 1, "experts that cannot be"),
        (lambda table: table * 0, "experts that cannot be"),
        (lambda table: table.astype(np.float32), "not I32"),
    ],
)
def test_a_table_that_names_no_expert_or_one_twice_is_refused(tmp_path, changed, said):
    weights = random_weights(HASHED)
    name = "blk.0.ffn_gate_tid2eid.weight"
    weights[name] = changed(weights[name])
    source = write_tiny_gguf(tmp_path / "tiny.gguf", HASHED, weights=weights)
    with pytest.raises(InvalidModelFile, match=said):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")


def test_a_hashed_layer_behind_a_routed_one_is_refused(tmp_path):
    weights = random_weights(HASHED)
    weights["blk.1.ffn_gate_tid2eid.weight"] = weights.pop("blk.0.ffn_gate_tid2eid.weight")
    source = write_tiny_gguf(tmp_path / "tiny.gguf", HASHED, weights=weights)
    with pytest.raises(UnsupportedModel, match="hashed"):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")
