"""Weights in blocks: the source's own bits, or rounded to them."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantisation
from gguf.quants import dequantize, quantize
from tiny_models import TinyShape, random_weights, write_tiny_gguf

from engine.dfm.blocks import Q4_1_BYTES, Q8_0_BYTES, dequantise
from engine.dfm.container import ModelFile
from engine.dfm.conversion import convert_gguf, unpermute
from engine.dfm.encoding import QUANT_TYPES
from engine.errors import InvalidModelFile, UnsupportedModel


def converted(tmp_path, quant_type, *, quantisation=Quantisation.F32, shape=TinyShape()):  # noqa: B008
    source = write_tiny_gguf(tmp_path / "tiny.gguf", shape, quantisation=quantisation)
    file = ModelFile.open(convert_gguf(source, tmp_path / "tiny.dfm", quant_type=quant_type))
    file.verify()
    return file


@pytest.mark.parametrize(
    ("quantisation", "size"),
    [
        (Quantisation.Q4_0, Q4_1_BYTES),
        (Quantisation.Q4_1, Q4_1_BYTES),
        (Quantisation.Q8_0, Q8_0_BYTES),
    ],
)
@pytest.mark.parametrize("quant_type", ["q4", "q8"])
def test_blocks_of_the_source_are_kept_exactly(tmp_path, quantisation, size, quant_type):
    plain = converted(tmp_path, "f32", quantisation=quantisation)
    file = converted(tmp_path, quant_type, quantisation=quantisation)
    for name, entry in plain.header.tensors.items():
        np.testing.assert_array_equal(file.tensor(name), plain.tensor(name), err_msg=name)
        if len(entry.shape) == 2:
            assert file.blocks(name).shape == (entry.shape[0], entry.shape[1] // 32, size)
    assert file.header.data_bytes < 0.35 * plain.header.data_bytes


def test_full_precision_is_rounded_to_the_quant_type_and_the_embedding_to_8_bits(tmp_path):
    weights = random_weights(TinyShape())
    fused = np.concatenate(
        [
            unpermute(weights["blk.0.attn_q.weight"], 4),
            unpermute(weights["blk.0.attn_k.weight"], 2),
            weights["blk.0.attn_v.weight"],
        ]
    )
    for quant_type, kind in (("q4", Quantisation.Q4_1), ("q8", Quantisation.Q8_0)):
        file = converted(tmp_path, quant_type)
        expected = dequantize(quantize(fused, kind), kind)
        np.testing.assert_array_equal(file.tensor("layers.0.attention.qkv.weight"), expected)
        embedding = quantize(weights["token_embd.weight"], Quantisation.Q8_0)
        np.testing.assert_array_equal(
            file.tensor("embedding.weight"), dequantize(embedding, Quantisation.Q8_0)
        )
        np.testing.assert_array_equal(
            file.tensor("layers.1.mlp_norm.weight"), weights["blk.1.ffn_norm.weight"]
        )


@pytest.mark.parametrize("kind", [Quantisation.Q4_1, Quantisation.Q8_0])
def test_blocks_stand_for_what_ggml_says(kind):
    values = np.random.default_rng(0).normal(size=(6, 96)).astype(np.float32)
    blocks = quantize(values, kind)
    expected = dequantize(blocks, kind)
    np.testing.assert_array_equal(dequantise(blocks.reshape(6, 3, -1)), expected)


def test_a_tensor_says_whether_it_is_in_blocks(tmp_path):
    file = converted(tmp_path, "q4")
    assert file.in_blocks
    assert file.blocks("layers.0.mlp.down.weight").shape[2] == 20
    with pytest.raises(InvalidModelFile, match="not in blocks"):
        file.blocks("final_norm.weight")
    with pytest.raises(InvalidModelFile, match="no tensor"):
        file.blocks("layers.9.mlp.down.weight")
    assert not converted(tmp_path, "f32").in_blocks


def test_a_width_that_is_no_multiple_of_32_cannot_be_in_blocks(tmp_path):
    shape = TinyShape(hidden=180, intermediate=100, heads=9, kv_heads=3)
    assert "q4" in QUANT_TYPES
    with pytest.raises(UnsupportedModel, match="multiple of 32"):
        converted(tmp_path, "q4", shape=shape)
