"""Head files: what is written is read, what does not fit is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from draft_heads import random_head
from safetensors.numpy import load_file, save_file
from tiny_models import TinyShape, write_tiny_dfm

from engine.dfm.container import ModelFile
from engine.draft.head.choosing import chosen_head
from engine.draft.head.file import HeadFile, read_card, read_head, write_head
from engine.errors import InvalidModelFile, UnsupportedModel
from engine.training.corpus import Sequence
from engine.training.counting import count_phrases


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dfm(tmp_path_factory.mktemp("models") / "tiny.dfm")


@pytest.fixture
def head(model: Path) -> HeadFile:
    phrases = count_phrases([Sequence(np.arange(9, dtype=np.int32), 1)] * 3, 269)
    own = random_head(model)
    return HeadFile(own.card, own.block, phrases)


def test_what_is_written_is_read(head: HeadFile, tmp_path: Path) -> None:
    path = tmp_path / "head.dfh"
    write_head(path, head)
    again = read_head(path)
    assert (again.card, read_card(path)) == (head.card, head.card)
    assert again.block is not None
    for name, value in head.block.linears.items():
        assert np.array_equal(again.block.linears[name], value)
    for name, value in head.block.vectors.items():
        # the largest is kept in half precision
        kept = value.astype(np.float16) if name == "predecessors" else value
        assert np.array_equal(again.block.vectors[name], kept)
        assert again.block.vectors[name].dtype == np.float32
    assert again.phrases.successors([1, 2, 3]) == head.phrases.successors([1, 2, 3]) != []
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_file_is_refused_with_what_is_wrong(head: HeadFile, tmp_path: Path) -> None:
    path = tmp_path / "head.dfh"
    write_head(path, head)
    tensors = load_file(path)
    card = {"format": "dfh/1", "card": msgspec.json.encode(head.card).decode()}
    for name, value in {
        "linear.root": tensors["linear.root"][:-1],
        "vector.slots": tensors["vector.slots"].astype(np.float64),
        "token_ids": np.zeros_like(tensors["token_ids"]),
        "phrases.3.tokens": tensors["phrases.3.tokens"][:, :1],
    }.items():
        save_file({**tensors, name: np.ascontiguousarray(value)}, path, card)
        with pytest.raises(InvalidModelFile, match="vocabulary" if "ids" in name else name):
            read_head(path)
    save_file(tensors, path, {"format": "dfh/9"})
    with pytest.raises(InvalidModelFile, match="dfh/1"):
        read_head(path)
    path.write_bytes(b"no head")
    with pytest.raises(InvalidModelFile, match="cannot be read"):
        read_head(path)


def test_a_head_is_chosen_by_what_the_model_was_converted_from(
    head: HeadFile, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.draft.head.choosing.SHIPPED", tmp_path)
    card = ModelFile.open(model).header.model
    assert chosen_head("auto", card) is None
    write_head(tmp_path / "tiny.dfh", head)
    assert chosen_head("auto", card).card == head.card
    quantised = msgspec.structs.replace(card, quantisation="q4")
    assert chosen_head("auto", quantised).card == head.card
    other = msgspec.structs.replace(card, source_sha256="0" * 64)
    assert chosen_head("auto", other) is None
    assert chosen_head("none", card) is None
    # named, it serves any model of its shape
    assert chosen_head(str(tmp_path / "tiny.dfh"), other).card == head.card
    shape = msgspec.structs.replace(card.architecture, vocab_size=head.highest_token)
    with pytest.raises(UnsupportedModel, match="does not have"):
        chosen_head(str(tmp_path / "tiny.dfh"), msgspec.structs.replace(card, architecture=shape))
    wide = ModelFile.open(write_tiny_dfm(tmp_path / "wide.dfm", TinyShape(hidden=64)))
    with pytest.raises(UnsupportedModel, match="another shape"):
        chosen_head(str(tmp_path / "tiny.dfh"), wide.header.model)
