"""A row's logits are the same bits whatever else is in the step.

Goal: the engine's central promise. Method: random packings of requests (chunks, trees, moves,
restarts, random slots) against one row at a time.
"""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_steps import OneByOne, Packer
from tiny_models import TinyShape, write_tiny_dfm

from engine.model.decoder import Decoder

SHAPES = {
    "grouped heads": TinyShape(),
    "one key-value head": TinyShape(heads=4, kv_heads=1, seed=1),
    "a key-value head for each": TinyShape(heads=2, kv_heads=2, seed=2),
    "biases, own head": TinyShape(biases=True, tied_embeddings=False, seed=3),
    "nine heads of 20, odd widths": TinyShape(
        layers=1, hidden=180, intermediate=100, heads=9, kv_heads=3, seed=4
    ),
}


@pytest.fixture(scope="module", params=SHAPES)
def pair(request, tmp_path_factory):
    """A decoder to pack, and the standard."""
    path = write_tiny_dfm(tmp_path_factory.mktemp("tiny") / "tiny.dfm", SHAPES[request.param])
    packed = Decoder.load(path, threads=1, kv_tokens=2048)
    return packed, OneByOne(Decoder.load(path, threads=1, kv_tokens=65536))


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), requests=st.integers(1, 5))
def test_a_packed_row_has_the_bits_of_a_row_alone(pair, seed, requests):
    decoder, standard = pair
    packer = Packer(
        decoder,
        random.Random(seed),
        slots=2048,
        requests=requests,
        length=220,
        alphabet=decoder.info.vocab_size,
    )
    for step in packer.steps(8):
        for prefix, logits in step:
            assert torch.equal(logits, standard.logits(prefix)), len(prefix)


def test_a_probed_decoder_says_that_it_is_batch_invariant(pair):
    decoder, _ = pair
    assert decoder.batch_invariant
