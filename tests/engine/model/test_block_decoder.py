"""The decoder in blocks, as the engine uses it: exact under drafting, close to single precision."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from block_models import SHAPES, chunk_of, write_block_dfm
from tiny_models import TinyShape, write_tiny_dfm, write_tiny_gguf

from dflash import DFlashModel
from engine.config import EngineConfig
from engine.dfm.conversion import convert_gguf
from engine.draft.foresight import Foresight
from engine.errors import UnsupportedModel
from engine.model.block_decoder import BlockDecoder
from engine.model.decoder import Decoder
from engine.model.loading import load_decoder
from engine.opening import open_model

PROMPT = [20, 21, 22, 20, 21, 22, 20, 21]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    folder = tmp_path_factory.mktemp("blocks")
    return write_block_dfm(folder / "tiny.dfm", SHAPES["grouped heads of 64"])


@pytest.fixture(scope="module")
def model(path):
    return DFlashModel.from_pretrained(path, backend="blocks", threads=2, kv_tokens=1040)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_neither_drafting_nor_neighbours_change_a_row(model, temperature):
    rows = [PROMPT, [30, 31, 32, 33], [40], [*PROMPT, 7, 8, 9] * 3]
    together = model.generate(rows, max_new_tokens=30, temperature=temperature, seed=[1, 2, 3, 4])
    for index, row in enumerate(rows):
        for options in ({"draft": False}, {"rollback": "restart"}, {"node_budget": 3}):
            alone = model.generate(
                row, max_new_tokens=30, temperature=temperature, seed=index + 1, **options
            )
            padded = torch.full((together.shape[1],), 2)
            padded[: alone.shape[1]] = alone[0]
            assert padded.equal(together[index])


def test_the_engine_says_what_computes(model):
    assert model.info.backend == "blocks"
    assert model.info.batch_invariant
    assert model.info.device == "cpu"
    assert model.info.thread_count == 2


@pytest.mark.parametrize("quant_type", ["q4", "q8"])
@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_close_to_single_precision_on_the_same_weights(tmp_path, name, quant_type):
    path = write_block_dfm(tmp_path / "tiny.dfm", SHAPES[name], quant_type)
    tokens = [random.Random(3).randrange(269) for _ in range(40)]
    step = chunk_of(tokens, 0, 40)
    exact = Decoder.load(path, threads=1, kv_tokens=64).forward(step)
    logits = BlockDecoder.load(path, kv_tokens=64).forward(step)
    assert (logits - exact).norm() < 0.05 * exact.norm()


def test_scaled_positions_are_scaled_alike(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(hidden=64, heads=2, kv_heads=1))
    path = convert_gguf(source, tmp_path / "tiny.dfm", quant_type="q8", rope_theta=50.0)
    step = chunk_of(list(range(20, 60)), 0, 40)
    exact = Decoder.load(path, threads=1, kv_tokens=64).forward(step)
    logits = BlockDecoder.load(path, kv_tokens=64).forward(step)
    assert (logits - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize("decoder", [Decoder, BlockDecoder])
def test_a_scaling_factor_multiplies_positions_before_they_are_rotated(path, decoder):
    step = chunk_of(list(range(20, 60)), 0, 40)
    doubled = dataclasses.replace(step, positions=2 * step.positions)
    plain = decoder.load(path, threads=1, kv_tokens=64)
    scaled = decoder.load(path, threads=1, kv_tokens=64, rope_scaling_factor=2.0)
    logits = plain.forward(step).clone()
    assert scaled.forward(step).equal(plain.forward(doubled))
    assert not scaled.forward(step).equal(logits)


@pytest.mark.parametrize("backend", ["fp32", "blocks"])
def test_a_models_steps_are_timed_when_it_is_opened(path, backend):
    config = EngineConfig(backend=backend, threads=1, kv_tokens=64, max_step_rows=20)
    model = open_model(path, config)
    rows, times = zip(*model.curve, strict=True)
    assert len(rows) > 1
    assert rows == tuple(sorted(rows))
    assert max(rows) <= 20
    assert times[0] > 0
    assert times == tuple(sorted(times))
    assert model.loop(config).stats().step_cost_ms == model.curve
    undrafted = dataclasses.replace(model, curve=None)
    assert undrafted.loop(config).stats().step_cost_ms == ()


def test_a_model_that_is_not_to_draft_is_neither_timed_nor_given_a_head(path, monkeypatch):
    for name in ("measured", "open_foresight"):
        monkeypatch.setattr(f"engine.opening.{name}", None)
    model = open_model(path, EngineConfig(draft=False, backend="blocks", threads=1, kv_tokens=64))
    assert model.curve is None
    assert model.foresight == Foresight()


def test_storage_holds_whole_pages_of_at_least_what_was_asked_for(path):
    assert BlockDecoder.load(path, kv_tokens=100).storage.slots == 112


def test_a_file_in_single_precision_is_refused_with_what_to_do(tmp_path):
    path = write_tiny_dfm(tmp_path / "tiny.dfm")
    with pytest.raises(UnsupportedModel, match="--quant-type"):
        load_decoder(path, backend="blocks")


def test_a_gpu_is_refused(path):
    with pytest.raises(UnsupportedModel, match="CPU"):
        load_decoder(path, backend="blocks", device="cuda")


def test_head_dims_that_no_kernel_takes_are_refused(tmp_path):
    shape = TinyShape(hidden=96, heads=8, kv_heads=4)  # of 12
    with pytest.raises(UnsupportedModel, match="eights"):
        load_decoder(write_block_dfm(tmp_path / "tiny.dfm", shape), backend="blocks")
