from __future__ import annotations

import json
import subprocess
import sys

import pytest
from tiny_models import TinyShape, write_tiny_dfm, write_tiny_gguf

from engine.dfm.header import header_sha256, read_header
from engine.errors import InvalidModelFile, UnsupportedModel


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_dfm(tmp_path_factory.mktemp("tiny") / "tiny.dfm", TinyShape())


@pytest.fixture
def rewritten(tiny, tmp_path):
    """A function that writes the file again with its header document changed."""

    def write(change, *, rehash=True):
        raw = tiny.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        document = json.loads(raw[8 : 8 + length])
        change(document)
        if rehash:
            document["__metadata__"]["header_sha256"] = header_sha256(document)
        header = json.dumps(document).encode()
        path = tmp_path / "changed.dfm"
        path.write_bytes(len(header).to_bytes(8, "little") + header + raw[8 + length :])
        return path

    return write


def test_a_header_says_what_the_model_is(tiny):
    header = read_header(tiny)
    architecture = header.model.architecture
    assert (architecture.family, architecture.layers, architecture.group_size) == ("llama", 2, 2)
    assert architecture.rope.theta == 10_000.0
    assert header.tokens.eos_ids == (2,)
    assert header.tokens.control_ids == (0, 1, 2)
    assert header.checksum.startswith("sha256:")
    assert header.model.quantisation == "f32"
    assert "<|im_start|>" in (header.chat_template or "")


def test_rewriting_a_header_unchanged_leaves_it_valid(rewritten, tiny):
    assert read_header(rewritten(lambda document: None)).tensors == read_header(tiny).tensors


def test_no_torch_is_needed_to_read_a_header(tiny):
    code = f"import sys; from engine.dfm.header import read_header; read_header({str(tiny)!r}); "
    code += "import engine.dfm.catalogue, engine.dfm.conversion, engine.tokenizer, engine.cli; "
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kept", [0, 4, 8, 100])
def test_a_file_cut_inside_its_header_is_refused(tiny, tmp_path, kept):
    path = tmp_path / "cut.dfm"
    path.write_bytes(tiny.read_bytes()[:kept])
    with pytest.raises(InvalidModelFile, match=r"truncated|not a \.dfm"):
        read_header(path)


def test_a_file_cut_inside_its_tensors_is_refused(tiny, tmp_path):
    path = tmp_path / "cut.dfm"
    path.write_bytes(tiny.read_bytes()[:-1])
    with pytest.raises(InvalidModelFile, match=r"truncated: .* expected"):
        read_header(path)


def test_a_file_with_something_behind_it_is_refused(tiny, tmp_path):
    path = tmp_path / "long.dfm"
    path.write_bytes(tiny.read_bytes() + b"x")
    with pytest.raises(InvalidModelFile, match="longer than its header says"):
        read_header(path)


def test_a_changed_header_is_refused(rewritten):
    def rename(document):
        card = json.loads(document["__metadata__"]["model"])
        document["__metadata__"]["model"] = json.dumps({**card, "licence": "mine"})

    with pytest.raises(InvalidModelFile, match="header does not match its checksum"):
        read_header(rewritten(rename, rehash=False))


def test_a_tensor_that_overlaps_another_is_refused(rewritten):
    def overlap(document):
        entry = document["final_norm.weight"]
        entry["data_offsets"] = [offset - 4 for offset in entry["data_offsets"]]

    with pytest.raises(InvalidModelFile, match="misplaced tensor"):
        read_header(rewritten(overlap))


@pytest.mark.parametrize("entry", ["model", "tokens", "tokenizer", "tensors_sha256"])
def test_a_header_without_an_entry_names_it(rewritten, entry):
    with pytest.raises(InvalidModelFile, match=f"incomplete header: .*{entry}"):
        read_header(rewritten(lambda document: document["__metadata__"].pop(entry)))


def test_a_later_format_is_refused_by_name(rewritten):
    with pytest.raises(InvalidModelFile, match="format dfm/9; this engine reads dfm/1"):
        read_header(rewritten(lambda document: document["__metadata__"].update(format="dfm/9")))


def test_a_gguf_is_told_apart(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(InvalidModelFile, match="is a GGUF file: convert it"):
        read_header(path)


@pytest.mark.parametrize("content", [b"PK\x03\x04" * 100, b"\x00" * 64, b"", b"\xff" * 16])
def test_a_foreign_file_is_refused(tmp_path, content):
    path = tmp_path / "foreign.dfm"
    path.write_bytes(content)
    with pytest.raises(InvalidModelFile, match=r"not a \.dfm file"):
        read_header(path)


def test_a_plain_safetensors_file_is_refused(tmp_path):
    header = b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path = tmp_path / "plain.dfm"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0\0\0")
    with pytest.raises(InvalidModelFile, match="no dfm metadata"):
        read_header(path)


def test_an_absent_file_is_refused(tmp_path):
    with pytest.raises(InvalidModelFile, match="cannot be read: No such file"):
        read_header(tmp_path / "absent.dfm")


def edited(card, **entries):
    """A change of one card's entries; `a__b` is entry b of entry a."""

    def change(document):
        content = json.loads(document["__metadata__"][card])
        for path, value in entries.items():
            *outer, name = path.split("__")
            place = content
            for step in outer:
                place = place[step]
            place[name] = value
        document["__metadata__"][card] = json.dumps(content)

    return change


def test_a_family_that_nothing_here_computes_is_unsupported(rewritten):
    with pytest.raises(UnsupportedModel, match="architecture 'mamba'; supported: llama"):
        read_header(rewritten(edited("model", architecture__family="mamba")))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in ("layers", "hidden", "intermediate", "heads", "kv_heads")),
        *((name, -1) for name in ("head_dim", "vocab_size", "context_length")),
        *((name, 10**30) for name in ("layers", "hidden", "intermediate", "vocab_size")),
        ("layers", 1025),
        ("hidden", 2**16 + 1),
        ("kv_heads", 3),
        ("head_dim", 1026),
        ("head_dim", 7),
        ("vocab_size", 2**21 + 1),
        ("vocab_size", 2),
        ("context_length", 2**24 + 1),
        ("norm_epsilon", float("nan")),
        ("norm_epsilon", 0.0),
        ("norm_epsilon", float("inf")),
        ("rope__theta", float("nan")),
        ("rope__theta", 1e300),
        ("rope__theta", -1.0),
        ("rope__dimensions", 4),
        ("rope__scaling_factor", 1e-300),
        ("rope__frequency_factors", [1.0]),
        ("rope__frequency_factors", [0.0, 1.0, 1.0, 1.0]),
    ],
)
def test_a_size_or_number_that_no_model_has_is_refused(rewritten, name, value):
    with pytest.raises(InvalidModelFile, match="does not describe a model"):
        read_header(rewritten(edited("model", **{f"architecture__{name}": value})))


def test_a_rotary_table_larger_than_memory_is_refused(rewritten):
    sizes = {"head_dim": 1024, "context_length": 2**24, "rope__dimensions": 1024}
    entries = {f"architecture__{name}": value for name, value in sizes.items()}
    with pytest.raises(InvalidModelFile, match="context is too long for heads so wide"):
        read_header(rewritten(edited("model", **entries)))


@pytest.mark.parametrize(
    "entries",
    [
        {"eos_ids": []},
        {"eos_ids": [269]},
        {"eos_ids": [-1]},
        {"bos_id": 269},
        {"control_ids": [0, 10**30]},
        {"control_ids": [-5]},
    ],
)
def test_a_special_token_outside_the_vocabulary_or_no_end_is_refused(rewritten, entries):
    with pytest.raises(InvalidModelFile, match="does not describe a model"):
        read_header(rewritten(edited("tokens", **entries)))


@pytest.mark.parametrize("entry", ["model", "tokens", "tokenizer", "chat_template"])
@pytest.mark.parametrize("value", [5, None, {}, [[]]])
def test_an_entry_that_is_no_string_is_refused(rewritten, entry, value):
    with pytest.raises(InvalidModelFile, match="incomplete header"):
        read_header(rewritten(lambda document: document["__metadata__"].update({entry: value})))


@pytest.mark.parametrize("shape", [[], [-1, -32], [0], [10**30], [1] * 65 + [32]])
def test_a_shape_that_no_tensor_has_is_refused(rewritten, shape):
    with pytest.raises(InvalidModelFile):
        read_header(rewritten(lambda document: document["final_norm.weight"].update(shape=shape)))


def test_a_header_nested_too_deep_is_refused(tmp_path):
    path = tmp_path / "deep.dfm"
    path.write_bytes((10**6).to_bytes(8, "little") + b"[" * 10**6)
    with pytest.raises(InvalidModelFile, match="not JSON"):
        read_header(path)
