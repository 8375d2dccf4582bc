"""The real model: agreement with transformers, and batch invariance at its true shapes."""

from __future__ import annotations

import random
from functools import cache

import gguf
import pytest
import torch
from packed_steps import OneByOne, Packer, int64
from real_model import real_dfm, real_gguf

from engine.model.decoder import Decoder
from engine.model.rows import Segment, StepRows
from engine.tokenizer import Tokenizer

TEXT = """<|im_start|>user
Write a Python function that merges two sorted lists, and say in one sentence why it is linear.
<|im_end|>
<|im_start|>assistant
def merge(left, right):
    merged = []
    while left and right:
        merged.append((left if left[0] <= right[0] else right).pop(0))
    return merged + left + right
"""
SOLO_SLOT = 1024  # above it, keys of the rows computed one by one


@pytest.fixture(scope="module")
def decoder():
    return Decoder.load(real_dfm(), threads=2, kv_tokens=4096)


@pytest.fixture(scope="module")
def token_ids():
    return Tokenizer.from_dfm(real_dfm()).encode(TEXT)


def test_logits_agree_with_transformers_loading_the_same_gguf(decoder, token_ids, monkeypatch):
    from transformers import AutoModelForCausalLM

    # It reads the file twice and makes the map of names anew for every module: most of its time.
    for name in ("GGUFReader", "get_tensor_name_map"):
        monkeypatch.setattr(gguf, name, cache(getattr(gguf, name)))
    path = real_gguf()
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    with torch.inference_mode():
        expected = theirs(torch.tensor([token_ids])).logits[0]
    count = len(token_ids)
    slots = torch.arange(count)
    tail = torch.where(torch.ones(count, count).tril() > 0, slots.expand(count, count), -1)
    segment = Segment(slots[:0], tail)
    logits = decoder.forward(StepRows(int64(token_ids), slots, slots, (segment,), slots))
    deviation = (logits - expected).abs().amax(1) / expected.abs().amax(1)
    assert deviation.max() < 1e-4
    assert torch.equal(logits.argmax(1), expected.argmax(1))


def test_a_packed_row_has_the_bits_of_a_row_alone(decoder):
    standard = OneByOne(decoder, first_slot=SOLO_SLOT)
    packer = Packer(
        decoder, random.Random(2), slots=SOLO_SLOT, requests=3, length=150, alphabet=49152
    )
    compared = 0
    for step in packer.steps(4):
        for prefix, logits in step:
            assert torch.equal(logits, standard.logits(prefix)), len(prefix)
            compared += 1
    assert compared > 50


def test_the_real_shapes_have_tiles_and_are_batch_invariant(decoder):
    assert decoder.batch_invariant
    assert max(decoder.row_tiles) >= 8
