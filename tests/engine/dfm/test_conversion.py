from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Quantisation
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import TinyShape, random_weights, write_tiny_gguf

from engine.dfm.container import ModelFile
from engine.dfm.conversion import convert_gguf, unpermute
from engine.dfm.header import read_header
from engine.errors import InvalidModelFile, UnsupportedModel
from engine.tokenizer import Tokenizer


def permute(values, heads):
    """What llama.cpp's converter does to query and key weights."""
    rows = values.shape[0]
    halves = values.reshape(heads, 2, rows // heads // 2, *values.shape[1:])
    return halves.swapaxes(1, 2).reshape(values.shape)


@given(heads=st.integers(1, 5), half=st.integers(1, 6), columns=st.integers(1, 3))
def test_unpermuting_undoes_the_permutation(heads, half, columns):
    values = np.random.default_rng(0).random((heads * half * 2, columns), dtype=np.float32)
    np.testing.assert_array_equal(unpermute(permute(values, heads), heads), values)


@pytest.mark.parametrize(
    "quantisation",
    [Quantisation.F16, Quantisation.BF16, Quantisation.Q4_0, Quantisation.Q4_1, Quantisation.Q8_0],
)
def test_every_weight_arrives_dequantised_and_fused(tmp_path, quantisation):
    shape = TinyShape()
    source = write_tiny_gguf(tmp_path / "tiny.gguf", shape, quantisation=quantisation)
    file = ModelFile.open(convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32"))
    file.verify()
    original = {
        name: dequantize(quantize(values, quantisation), quantisation)
        if values.ndim == 2
        else values
        for name, values in random_weights(shape).items()
    }
    gate, up = original["blk.1.ffn_gate.weight"], original["blk.1.ffn_up.weight"]
    np.testing.assert_array_equal(file.tensor("layers.1.mlp.gate_up.weight"), np.r_[gate, up])
    query, key, value = (original[f"blk.0.attn_{part}.weight"] for part in "qkv")
    fused = np.r_[unpermute(query, shape.heads), unpermute(key, shape.kv_heads), value]
    np.testing.assert_array_equal(file.tensor("layers.0.attention.qkv.weight"), fused)
    np.testing.assert_array_equal(file.tensor("embedding.weight"), original["token_embd.weight"])
    assert quantisation.name in file.header.model.source_types


def test_biases_and_an_own_head_are_kept(tmp_path):
    shape = TinyShape(biases=True, tied_embeddings=False)
    source = write_tiny_gguf(tmp_path / "tiny.gguf", shape)
    file = ModelFile.open(convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32"))
    weights = random_weights(shape)
    query, key, value = (weights[f"blk.1.attn_{part}.bias"] for part in "qkv")
    np.testing.assert_array_equal(
        file.tensor("layers.1.attention.qkv.bias"),
        np.r_[unpermute(query, shape.heads), unpermute(key, shape.kv_heads), value],
    )
    np.testing.assert_array_equal(
        file.tensor("layers.1.attention.output.bias"), weights["blk.1.attn_output.bias"]
    )
    np.testing.assert_array_equal(file.tensor("head.weight"), weights["output.weight"])
    assert not file.header.model.architecture.tied_embeddings


@pytest.mark.parametrize(
    ("quant_type", "stored"),
    [("q4_bias_aware", "q4"), ("q5_k_m_bias_aware", "q8"), ("q8_bias_aware", "q8")],
)
def test_bias_aware_types_keep_biases_whole_and_weights_no_narrower(tmp_path, quant_type, stored):
    shape = TinyShape(biases=True, hidden=64, intermediate=64, heads=4)
    source = write_tiny_gguf(tmp_path / "tiny.gguf", shape)
    file = ModelFile.open(convert_gguf(source, tmp_path / "tiny.dfm", quant_type=quant_type))
    assert file.header.model.quantisation == stored
    np.testing.assert_array_equal(
        file.tensor("layers.1.attention.output.bias"),
        random_weights(shape)["blk.1.attn_output.bias"],
    )


def test_biases_that_have_lost_their_bits_are_refused_by_bias_aware_types(tmp_path):
    def biased(writer):
        four = gguf.GGMLQuantizationType.Q4_0
        values = gguf.quants.quantize(np.linspace(-1, 1, 64, dtype=np.float32), four)
        writer.add_tensor("blk.0.attn_output.bias", values, raw_dtype=four)

    shape = TinyShape(hidden=64, intermediate=64, heads=4)
    source = write_tiny_gguf(tmp_path / "tiny.gguf", shape, extra=biased)
    with pytest.raises(UnsupportedModel, match="bias has been rounded to Q4_0"):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="q5_k_m_bias_aware")
    assert not (tmp_path / "tiny.dfm").exists()
    convert_gguf(source, tmp_path / "tiny.dfm", quant_type="q8")


def test_the_same_source_gives_the_same_bytes(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    first = convert_gguf(source, tmp_path / "first.dfm", quant_type="f32")
    assert (
        first.read_bytes()
        == convert_gguf(source, tmp_path / "second.dfm", quant_type="f32").read_bytes()
    )


def test_progress_counts_up_to_all_the_bytes(tmp_path):
    seen = []
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    target = convert_gguf(
        source,
        tmp_path / "t.dfm",
        quant_type="f32",
        progress=lambda done, total: seen.append((done, total)),
    )
    bytes_written = read_header(target).data_bytes
    assert seen == sorted(seen)
    assert seen[-1] == (bytes_written, bytes_written)


def test_an_unknown_theta_is_an_error_until_it_is_given(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(theta=None))
    with pytest.raises(InvalidModelFile, match="rope theta; give it with --rope-theta"):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")
    target = convert_gguf(source, tmp_path / "tiny.dfm", rope_theta=500_000.0, quant_type="f32")
    assert read_header(target).model.architecture.rope.theta == 500_000.0


@pytest.mark.parametrize("theta", [0.0, -1.0, float("nan"), float("inf")])
def test_a_theta_that_is_no_base_is_refused(tmp_path, theta):
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(InvalidModelFile, match="rope theta"):
        convert_gguf(source, tmp_path / "tiny.dfm", rope_theta=theta, quant_type="f32")


def test_another_architecture_is_refused_by_name(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", architecture="gemma3")
    with pytest.raises(UnsupportedModel, match="architecture 'gemma3'; supported: llama"):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", pre_tokenizer="mystery")
    with pytest.raises(UnsupportedModel, match="pre-tokenizer 'mystery'; supported: gpt-2, smollm"):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")


@pytest.mark.parametrize("quant_type", ["q5_k_m", "q4_1", ""])
def test_a_quant_type_that_does_not_exist_is_refused(tmp_path, quant_type):
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(UnsupportedModel, match=f"no quant type '{quant_type}'; there is: f32"):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type=quant_type)
    assert not (tmp_path / "tiny.dfm").exists()


@pytest.mark.parametrize("kept", [0, 3, 30, 3000, -1, -4000])
def test_a_truncated_gguf_is_refused(tmp_path, kept):
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    source.write_bytes(source.read_bytes()[:kept])
    with pytest.raises(InvalidModelFile, match="GGUF"):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]


def test_a_gguf_without_a_tensor_names_it(tmp_path):
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, without=("blk.1.ffn_down.weight",))
    with pytest.raises(InvalidModelFile, match=r"no tensor blk\.1\.ffn_down\.weight"):
        convert_gguf(path, tmp_path / "tiny.dfm", quant_type="f32")


def test_an_absent_source_is_refused(tmp_path):
    with pytest.raises(InvalidModelFile, match="cannot be read"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "tiny.dfm", quant_type="f32")


def test_linear_rope_scaling_is_kept_and_yarn_is_refused(tmp_path):
    def scaled(kind):
        def add(writer):
            writer.add_rope_scaling_type(kind)
            writer.add_rope_scaling_factor(4.0)

        return write_tiny_gguf(tmp_path / "tiny.gguf", extra=add)

    target = convert_gguf(
        scaled(gguf.RopeScalingType.LINEAR), tmp_path / "tiny.dfm", quant_type="f32"
    )
    assert read_header(target).model.architecture.rope.scaling_factor == 4.0
    with pytest.raises(UnsupportedModel, match="scales rope by 'yarn'"):
        convert_gguf(scaled(gguf.RopeScalingType.YARN), tmp_path / "tiny.dfm", quant_type="f32")


def test_more_tokens_than_the_model_embeds_are_refused(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(vocab_size=200))
    with pytest.raises(InvalidModelFile, match="contradictory vocabulary"):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")


def test_a_padded_vocabulary_is_kept(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(vocab_size=320))
    target = convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")
    assert read_header(target).model.architecture.vocab_size == 320
    assert Tokenizer.from_dfm(target).piece(319) == b""


DAMAGES = {
    "a name that is not UTF-8": (b"tiny", b"\xff\xfe\xff\xfe"),
    "a token that is not UTF-8": (b"<|im_start|>", b"<|im_\xff\xfert|>"),
    "a key that is not UTF-8": (b"llama.block_count", b"llama.block\xffcount"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_broken_text_is_refused_as_damage(tmp_path, damage):
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    before, after = DAMAGES[damage]
    source.write_bytes(source.read_bytes().replace(before, after, 1))
    with pytest.raises(InvalidModelFile, match="GGUF"):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")


def test_an_array_longer_than_the_file_is_refused_at_once(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf")
    raw = bytearray(source.read_bytes())
    key = b"tokenizer.ggml.token_type"
    at = raw.index(key) + len(key) + 8  # behind the types of the field and of its elements
    raw[at : at + 8] = (2**60).to_bytes(8, "little")
    source.write_bytes(raw)
    with pytest.raises(InvalidModelFile, match="GGUF"):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (lambda writer: writer.add_array("general.license", ["mit", "gpl"]), "general.license"),
        (lambda writer: writer.add_string("llama.expert_count", "8"), "llama.expert_count"),
        (lambda writer: writer.add_uint32("llama.attention.key_length", 0), "describe a model"),
        (lambda writer: writer.add_uint32("tokenizer.ggml.eot_token_id", 269), "special token"),
    ],
)
def test_metadata_of_another_kind_is_refused_by_name(tmp_path, add, said):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", extra=add)
    with pytest.raises(InvalidModelFile, match=said):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")


@pytest.mark.parametrize("sizes", [{"heads": 3}, {"kv_heads": 3}, {"context_length": 0}])
def test_a_gguf_of_impossible_sizes_is_refused(tmp_path, sizes):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(**sizes))
    with pytest.raises(InvalidModelFile):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")


MIXTURE = TinyShape(experts=4)


@pytest.mark.parametrize("quant_type", ["f32", "q4", "q8"])
def test_every_expert_becomes_matrices_of_its_own(tmp_path, quant_type):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", MIXTURE)
    path = convert_gguf(source, tmp_path / "tiny.dfm", quant_type=quant_type)
    file = ModelFile.open(path)
    weights = random_weights(MIXTURE)
    experts = file.header.model.architecture.experts
    assert (experts.count, experts.used, experts.normalised) == (4, 2, True)
    for expert in range(4):
        name = f"layers.1.mlp.experts.{expert}"
        gate, up, down = (
            weights[f"blk.1.ffn_{part}_exps.weight"][expert] for part in ("gate", "up", "down")
        )
        assert file.extent(f"{name}.gate_up.weight") == (128, 32)
        near = {"f32": 0.0, "q4": 0.05, "q8": 0.005}[quant_type]
        for own, expected in (("gate_up", np.r_[gate, up]), ("down", down)):
            off = np.abs(file.tensor(f"{name}.{own}.weight") - expected).max()
            assert off <= near, (own, off)
    router = file.tensor("layers.1.mlp.router.weight")
    np.testing.assert_array_equal(router, weights["blk.1.ffn_gate_inp.weight"])


@pytest.mark.parametrize(
    ("changes", "add", "said"),
    [
        (
            {},
            lambda writer: writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID),
            "function than softmax",
        ),
        ({}, lambda writer: writer.add_expert_weights_scale(2.5), "scaled expert weights"),
        ({}, lambda writer: writer.add_expert_group_count(4), "in groups"),
        (
            {},
            lambda writer: writer.add_tensor("blk.0.ffn_gate.0.weight", np.zeros((2, 2), "f4")),
            "a tensor for each expert",
        ),
        ({"architecture": "llama", "shape": TinyShape(experts=4, shared=32)}, None, "shared"),
        ({"architecture": "qwen2moe"}, None, "no shared expert"),
    ],
)
def test_a_mixture_of_a_kind_that_nothing_here_computes_is_refused(tmp_path, changes, add, said):
    arguments = {"shape": MIXTURE, **changes} | ({"extra": add} if add else {})
    source = write_tiny_gguf(tmp_path / "tiny.gguf", **arguments)
    with pytest.raises(UnsupportedModel, match=said):
        convert_gguf(source, tmp_path / "tiny.dfm", quant_type="q4")


def test_a_family_of_mixtures_is_never_dense_and_no_row_uses_more_than_there_are(tmp_path):
    dense = write_tiny_gguf(tmp_path / "dense.gguf", architecture="qwen2moe")
    greedy = write_tiny_gguf(tmp_path / "greedy.gguf", TinyShape(experts=2, used=3))
    short = write_tiny_gguf(
        tmp_path / "short.gguf", MIXTURE, without=["blk.1.ffn_down_exps.weight"]
    )
    for source, said in (
        (dense, "how many experts"),
        (greedy, "more experts than there are"),
        (short, "blk.1.ffn_down_exps.weight"),
    ):
        with pytest.raises(InvalidModelFile, match=said):
            convert_gguf(source, tmp_path / "tiny.dfm", quant_type="f32")
