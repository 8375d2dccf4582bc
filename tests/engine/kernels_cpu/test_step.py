"""A whole step in blocks: the same bits on every path, for every row, in whatever company.

Goal: instruction set, threads, twin, neighbours, chunks, trees and moves change nothing. Method:
random packings against one row at a time on another path.
"""

from __future__ import annotations

import random

import pytest
import torch
from block_models import SHAPES, chunk_of, prefill, write_block_dfm
from block_runtimes import NATIVE
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packed_steps import OneByOne, Packer

from engine.kernels.cpu.ops import handle
from engine.model.block_decoder import BlockDecoder
from engine.model.rows import Segment, StepRows

PATHS = [(name, threads) for name in NATIVE for threads in (1, 3)]
TOKENS = [random.Random(1).randrange(269) for _ in range(90)]


@pytest.fixture(scope="module", params=SHAPES)
def path(request, tmp_path_factory):
    quant_type = "q8" if "16" in request.param else "q4"
    folder = tmp_path_factory.mktemp("blocks")
    return write_block_dfm(folder / "tiny.dfm", SHAPES[request.param], quant_type)


@pytest.fixture(scope="module")
def expected(path):
    """The logits of a prompt, by the twin in one chunk."""
    return prefill(BlockDecoder.load(path, instruction_set="twin", kv_tokens=96), TOKENS, 90)


@pytest.mark.parametrize(("name", "threads"), PATHS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_prompt_has_the_twins_bits_on_every_path(path, expected, name, threads, chunk):
    decoder = BlockDecoder.load(path, threads=threads, instruction_set=name, kv_tokens=96)
    assert decoder.instruction_set == name
    assert torch.equal(prefill(decoder, TOKENS, chunk), expected)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1), requests=st.integers(1, 5))
@pytest.mark.parametrize(("name", "threads"), PATHS)
def test_a_packed_row_has_the_bits_of_a_row_alone(path, name, threads, seed, requests):
    decoder = BlockDecoder.load(path, threads=threads, instruction_set=name, kv_tokens=2048)
    standard = OneByOne(BlockDecoder.load(path, threads=1, kv_tokens=8192))
    packer = Packer(
        decoder, random.Random(seed), slots=2048, requests=requests, length=120, alphabet=269
    )
    for step in packer.steps(5):
        for prefix, logits in step:
            assert torch.equal(logits, standard.logits(prefix)), len(prefix)


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32 - 1))
def test_the_twin_packs_to_the_same_bits(path, seed):
    decoder = BlockDecoder.load(path, instruction_set="twin", kv_tokens=1024)
    standard = OneByOne(BlockDecoder.load(path, threads=2, kv_tokens=4096))
    packer = Packer(decoder, random.Random(seed), slots=1024, requests=3, length=60, alphabet=269)
    for step in packer.steps(3):
        for prefix, logits in step:
            assert torch.equal(logits, standard.logits(prefix)), len(prefix)


def test_taps_are_the_stream_behind_a_layer_on_every_path(path):
    layers = list(range(BlockDecoder.load(path, kv_tokens=96).info.layers))
    step = chunk_of(TOKENS, 0, 20)
    twin = BlockDecoder.load(path, instruction_set="twin", kv_tokens=96)
    logits, taps = twin.forward_tapped(step, layers)
    assert taps.shape == (len(layers), 20, twin.info.hidden)
    for name, threads in PATHS:
        decoder = BlockDecoder.load(path, threads=threads, instruction_set=name, kv_tokens=96)
        own_logits, own_taps = decoder.forward_tapped(step, layers)
        assert torch.equal(own_taps, taps)
        assert torch.equal(own_logits, logits)


def test_a_step_may_ask_for_some_logits_or_none(path):
    decoder = BlockDecoder.load(path, kv_tokens=96)
    step = chunk_of(TOKENS, 0, 20)
    everything = decoder.forward(step).clone()

    def asking(*rows):
        wanted = torch.tensor(rows, dtype=torch.int64)
        return decoder.forward(
            StepRows(step.token_ids, step.positions, step.slots, step.segments, wanted)
        )

    assert torch.equal(asking(19, 3), everything[[19, 3]])
    assert asking().shape == (0, 269)


def test_results_outlive_the_step_after(path):
    decoder = BlockDecoder.load(path, kv_tokens=96)
    first = decoder.forward(chunk_of(TOKENS, 0, 20))
    kept = first.clone()
    decoder.forward(chunk_of(TOKENS, 20, 20))
    assert torch.equal(first, kept)


@pytest.mark.parametrize("name", [*NATIVE[:1], "twin"])
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("token_ids", 269, "vocabulary"),
        ("token_ids", -1, "vocabulary"),
        ("positions", 512, "context"),
        ("slots", 96, "storage"),
        ("logit_rows", 1, "row"),
    ],
)
def test_an_index_out_of_range_is_refused(path, name, field, value, message):
    decoder = BlockDecoder.load(path, instruction_set=name, kv_tokens=96)
    fields = {
        "token_ids": torch.tensor([5]),
        "positions": torch.tensor([0]),
        "slots": torch.tensor([0]),
        "logit_rows": torch.tensor([0]),
    }
    fields[field] = torch.tensor([value])
    segment = Segment(torch.empty(0, dtype=torch.int64), fields["slots"].view(1, 1))
    with pytest.raises(ValueError, match=message):
        decoder.forward(StepRows(segments=(segment,), **fields))


def test_moved_keys_are_the_keys_that_were_moved(path):
    decoder = BlockDecoder.load(path, kv_tokens=128)
    expected = prefill(decoder, TOKENS[:40], 40)
    places = torch.randperm(80, generator=torch.Generator().manual_seed(0))[:39] + 40
    decoder.storage.move(torch.arange(39), places)
    decoder.storage.move(
        torch.arange(40), torch.arange(1, 41)
    )  # overwritten, each by its neighbour
    last = StepRows(
        torch.tensor(TOKENS[39:40]),
        torch.tensor([39]),
        torch.tensor([120]),
        (Segment(places, torch.tensor([[120]])),),
        torch.tensor([0]),
    )
    assert torch.equal(decoder.forward(last)[0], expected[39])


def test_the_operator_computes_the_step(path):
    decoder = BlockDecoder.load(path, kv_tokens=96)
    step = chunk_of(TOKENS, 0, 20)
    expected = decoder.forward(step).clone()
    logits, taps = torch.ops.dflash.block_step(
        handle(decoder.storage),
        step.token_ids,
        step.positions,
        step.slots,
        [segment.committed for segment in step.segments],
        [segment.tail for segment in step.segments],
        step.logit_rows,
        [0],
    )
    assert torch.equal(logits, expected)
    assert taps.shape == (1, 20, decoder.info.hidden)
