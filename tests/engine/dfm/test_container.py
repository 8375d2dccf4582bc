from __future__ import annotations

import numpy as np
import pytest
from safetensors import safe_open
from tiny_models import TinyShape, random_weights, write_tiny_dfm

from engine.dfm.container import ALIGNMENT_BYTES, ModelFile, PendingTensor, write_dfm
from engine.dfm.header import read_header
from engine.errors import InvalidModelFile


@pytest.fixture
def tiny(tmp_path):
    return write_tiny_dfm(tmp_path / "tiny.dfm", TinyShape())


def test_the_safetensors_library_reads_the_same_tensors(tiny):
    ours = ModelFile.open(tiny)
    with safe_open(tiny, framework="numpy") as theirs:
        assert set(theirs.keys()) == set(ours.header.tensors)
        assert theirs.metadata()["format"] == "dfm/1"
        for name in ours.header.tensors:
            np.testing.assert_array_equal(ours.tensor(name), theirs.get_tensor(name))


def test_tensors_are_views_of_the_file_and_can_be_written_without_changing_it(tiny):
    before = tiny.read_bytes()
    tensor = ModelFile.open(tiny).tensor("final_norm.weight")
    np.testing.assert_array_equal(tensor, random_weights(TinyShape())["output_norm.weight"])
    tensor += 1
    assert tiny.read_bytes() == before


def test_tensors_begin_on_a_cache_line(tiny):
    assert read_header(tiny).data_offset % ALIGNMENT_BYTES == 0


def test_an_untouched_file_verifies(tiny):
    ModelFile.open(tiny).verify()


@pytest.mark.parametrize("place", [-1, -5000])
def test_a_flipped_bit_of_a_tensor_is_found(tiny, place):
    raw = bytearray(tiny.read_bytes())
    raw[place] ^= 1
    tiny.write_bytes(raw)
    file = ModelFile.open(tiny)
    with pytest.raises(InvalidModelFile, match="tensors do not match their checksum"):
        file.verify()


def test_an_absent_tensor_is_named(tiny):
    with pytest.raises(InvalidModelFile, match=r"no tensor head\.weight"):
        ModelFile.open(tiny).tensor("head.weight")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tiny, tmp_path):
    before = tiny.read_bytes()
    header = read_header(tiny)
    wrong = PendingTensor("final_norm.weight", (3,), lambda: np.zeros(2, dtype=np.float32))
    with pytest.raises(InvalidModelFile, match=r"final_norm.weight has shape \(2,\)"):
        write_dfm(
            tiny,
            model=header.model,
            tokens=header.tokens,
            tokenizer_json=header.tokenizer_json,
            chat_template=None,
            tensors=[wrong],
        )
    assert tiny.read_bytes() == before
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".dfm", ".gguf"]
