"""The decoder against an independent reference, and at its edges."""

from __future__ import annotations

import gguf
import pytest
import torch
from dense_llama import DenseLlama
from packed_steps import int64
from tiny_models import TinyShape, write_tiny_dfm, write_tiny_gguf

from engine.dfm.container import ModelFile, PendingTensor, write_dfm
from engine.dfm.conversion import convert_gguf
from engine.errors import InvalidModelFile, UnsupportedModel
from engine.model.decoder import Decoder
from engine.model.operations import silu_
from engine.model.rows import Segment, StepRows

SHAPES = [
    TinyShape(),
    TinyShape(biases=True, tied_embeddings=False, layers=3),
    TinyShape(heads=4, kv_heads=1, theta=500_000.0),
    TinyShape(hidden=60, heads=3, kv_heads=3, intermediate=50),
]


def chunk(token_ids, start, slots):
    """A step that continues one sequence at `start`, all logits wanted."""
    count = len(token_ids)
    own = slots[start : start + count]
    tail = torch.where(torch.ones(count, count).tril() > 0, own.expand(count, count), -1)
    return StepRows(
        int64(token_ids),
        torch.arange(start, start + count),
        own,
        (Segment(slots[:start], tail),),
        torch.arange(count),
    )


def logits_of(decoder, token_ids, chunk_size):
    """Logits of every position, in chunks, keys scattered over the storage."""
    random = torch.Generator().manual_seed(5)
    slots = torch.randperm(decoder.storage.slots, generator=random)[: len(token_ids)]
    return torch.cat(
        [
            decoder.forward(chunk(token_ids[start : start + chunk_size], start, slots))
            for start in range(0, len(token_ids), chunk_size)
        ]
    )


def assert_close(logits, expected, relative):
    """Hold the largest deviation below a fraction of the largest logit."""
    assert (logits - expected).abs().max() < relative * expected.abs().max()


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_agree_with_full_attention_over_the_whole_sequence(tmp_path, shape):
    path = write_tiny_dfm(tmp_path / "tiny.dfm", shape)
    decoder = Decoder.load(path, threads=1, kv_tokens=256)
    token_ids = torch.randint(269, (150,), generator=torch.Generator().manual_seed(3)).tolist()
    expected = DenseLlama(path.with_suffix(".gguf")).logits(token_ids)
    assert_close(logits_of(decoder, token_ids, 40), expected, 1e-5)


def test_rope_scaling_and_frequency_factors_are_applied(tmp_path):
    def scaled(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)
        writer.add_tensor("rope_freqs.weight", torch.tensor([1.0, 1.0, 2.0, 8.0]).numpy())

    source = write_tiny_gguf(tmp_path / "tiny.gguf", extra=scaled)
    decoder = Decoder.load(
        convert_gguf(source, tmp_path / "t.dfm", quant_type="f32"), threads=1, kv_tokens=256
    )
    token_ids = list(range(100, 200))
    assert_close(logits_of(decoder, token_ids, 64), DenseLlama(source).logits(token_ids), 1e-5)


def test_only_the_wanted_rows_get_logits_in_the_order_asked_for(tmp_path):
    decoder = Decoder.load(write_tiny_dfm(tmp_path / "tiny.dfm"), threads=1, kv_tokens=16)
    step = chunk([5, 6, 7], 0, torch.arange(3))
    every = decoder.forward(step)
    wanted = StepRows(step.token_ids, step.positions, step.slots, step.segments, int64([2, 0]))
    assert torch.equal(decoder.forward(wanted), every[[2, 0]])
    none = StepRows(step.token_ids, step.positions, step.slots, step.segments, int64([]))
    assert decoder.forward(none).shape == (0, 269)


def test_rows_beyond_the_largest_tile_run_in_several_tiles(tmp_path):
    decoder = Decoder.load(write_tiny_dfm(tmp_path / "tiny.dfm"), threads=1, kv_tokens=256)
    token_ids = list(range(10, 210))
    assert torch.equal(logits_of(decoder, token_ids, 200), logits_of(decoder, token_ids, 50))


@pytest.mark.parametrize("threads", [1, 3])
def test_silu_gives_a_row_the_same_bits_at_any_height_and_thread_count(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        gate = torch.randn(64, 2 * 5632, generator=torch.Generator().manual_seed(1))[:, :5632]
        alone = gate[:1].clone()
        silu_(alone)
        silu_(gate)
        assert torch.equal(gate[:1], alone)
    finally:
        torch.set_num_threads(before)


def test_the_decoder_says_what_it_is(tmp_path):
    decoder = Decoder.load(write_tiny_dfm(tmp_path / "tiny.dfm"), threads=1, kv_tokens=16)
    assert (decoder.backend, decoder.device, decoder.threads) == ("fp32", "cpu", 1)
    assert decoder.eos_ids == {2}
    assert decoder.info.layers == 2
    assert decoder.storage.slots == 16
    assert decoder.instruction_set == torch.backends.cpu.get_cpu_capability()


def test_a_tampered_file_is_not_loaded(tmp_path):
    path = write_tiny_dfm(tmp_path / "tiny.dfm")
    raw = bytearray(path.read_bytes())
    raw[-9] ^= 1
    path.write_bytes(raw)
    with pytest.raises(InvalidModelFile, match="do not match their checksum"):
        Decoder.load(path, threads=1, kv_tokens=16)


def test_an_unknown_backend_is_refused(tmp_path):
    with pytest.raises(UnsupportedModel, match="no linear backend 'int3'"):
        Decoder.load(write_tiny_dfm(tmp_path / "tiny.dfm"), backend="int3")


def test_a_tensor_of_another_shape_than_the_architecture_says_is_named(tmp_path):
    path = write_tiny_dfm(tmp_path / "tiny.dfm")
    file = ModelFile.open(path)
    header = file.header
    tensors = {name: file.tensor(name).copy() for name in header.tensors}
    tensors["final_norm.weight"] = tensors["final_norm.weight"][:-1]
    write_dfm(
        path,
        model=header.model,
        tokens=header.tokens,
        tokenizer_json=header.tokenizer_json,
        chat_template=header.chat_template,
        tensors=[PendingTensor(name, v.shape, lambda v=v: v) for name, v in tensors.items()],
    )
    with pytest.raises(InvalidModelFile, match=r"final_norm\.weight has shape \(31,\)"):
        Decoder.load(path, threads=1, kv_tokens=16)
