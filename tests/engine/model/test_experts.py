"""Mixtures of experts against `transformers`, and against themselves.

Goal: routing, weighting and summing are the families' own, and no row's result depends on others.
"""

from __future__ import annotations

import random

import pytest
import torch
from block_models import chunk_of
from hypothesis import given, settings
from hypothesis import strategies as st
from mixtures import MIXTURES, reference_logits
from packed_steps import OneByOne, Packer
from tiny_models import write_tiny_gguf

from engine.dfm.conversion import convert_gguf
from engine.dfm.header import Experts
from engine.errors import UnsupportedModel
from engine.kernels.cpu.library import open_library
from engine.model.experts import routed
from engine.model.loading import load_decoder

TOKENS = torch.randint(269, (60,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(
    scope="module",
    params=[(name, quant) for name in MIXTURES for quant in ("f32", "q4")],
    ids="-".join,
)
def model(request, tmp_path_factory):
    """A mixture's shape and file."""
    name, quant_type = request.param
    folder = tmp_path_factory.mktemp("mixture")
    source = write_tiny_gguf(folder / "tiny.gguf", MIXTURES[name])
    return MIXTURES[name], convert_gguf(source, folder / "tiny.dfm", quant_type=quant_type)


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
    _, path = model
    packed = load_decoder(path, threads=1, kv_tokens=1024, expert_cache_size=1 + seed % 8)
    standard = OneByOne(load_decoder(path, threads=2, kv_tokens=16384))
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
