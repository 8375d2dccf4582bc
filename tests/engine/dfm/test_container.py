from __future__ import annotations

import numpy as np
import pytest
from safetensors import safe_open
from tiny_models import TinyShape, random_weights, write_tiny_dfm

from engine.dfm.container import ALIGNMENT_BYTES, ModelFile, PendingTensor, write_dfm, write_heat
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


def test_a_heat_map_changes_the_header_and_nothing_else(tmp_path):
    path = write_tiny_dfm(tmp_path / "tiny.dfm", TinyShape(experts=4))
    before = ModelFile.open(path)
    heat = ((5, 0, 2, 1), (0, 0, 0, 2**40))
    write_heat(path, heat)
    write_heat(path, heat)
    after = ModelFile.open(path)
    after.verify()
    assert after.header.expert_heat == heat
    assert before.header.expert_heat is None
    assert after.header.tensors_sha256 == before.header.tensors_sha256
    assert after.header.data_offset % ALIGNMENT_BYTES == 0
    assert [file.name for file in tmp_path.iterdir() if file.suffix == ".partial"] == []


@pytest.mark.parametrize("heat", [(), ((1, 2, 3, 4),), ((1, 2, 3),) * 2, ((1, 2, 3, -4),) * 2])
def test_a_heat_map_that_is_not_of_the_model_s_experts_leaves_the_file_alone(tmp_path, heat):
    path = write_tiny_dfm(tmp_path / "tiny.dfm", TinyShape(experts=4))
    before = path.read_bytes()
    with pytest.raises(InvalidModelFile):
        write_heat(path, heat)
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["tiny.dfm", "tiny.gguf"]


def test_a_dense_model_has_no_heat_map(tiny):
    with pytest.raises(InvalidModelFile, match="experts"):
        write_heat(tiny, ((1,), (1,)))
