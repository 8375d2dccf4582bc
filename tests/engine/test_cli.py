from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from tiny_models import TinyShape, write_tiny_dfm, write_tiny_gguf

from engine.cli import convert, models, pull
from engine.dfm.catalogue import DEFAULT_MODEL
from engine.dfm.header import read_header
from engine.errors import InvalidModelFile, ModelNotFound, UnsupportedModel


@pytest.fixture
def home(tmp_path):
    (tmp_path / "models").mkdir()
    return SimpleNamespace(home=tmp_path)


def test_models_lists_what_is_at_hand_and_what_can_be_fetched(home):
    write_tiny_dfm(home.home / "models" / "tiny.dfm")
    (home.home / "models" / "broken.dfm").write_bytes(b"nothing")
    result = CliRunner().invoke(models, obj=home)
    assert result.exit_code == 0
    broken, tiny, available = result.output.splitlines()
    assert "not a .dfm file" in broken
    assert tiny.split() == ["tiny", "at", "hand", "llama,", "f32,", "context", "512"]
    assert available.startswith(DEFAULT_MODEL)
    assert f"dflash pull {DEFAULT_MODEL}" in available


def test_models_as_json_is_one_document(home):
    path = write_tiny_dfm(home.home / "models" / "tiny.dfm")
    result = CliRunner().invoke(models, ["--json"], obj=home)
    document = json.loads(result.output)
    (tiny,) = document["installed"]
    assert tiny["name"] == "tiny"
    assert tiny["bytes"] == path.stat().st_size
    assert tiny["checksum"] == read_header(path).checksum
    assert [model["name"] for model in document["available"]] == [DEFAULT_MODEL]


def test_convert_writes_a_dfm_and_prints_its_checksum(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(theta=None))
    target = tmp_path / "tiny.dfm"
    arguments = ["--input", str(source), "--output", str(target), "--quant-type", "f32"]
    result = CliRunner().invoke(convert, [*arguments, "--rope-theta", "1000000"])
    assert result.exit_code == 0, result.exception
    header = read_header(target)
    assert header.model.architecture.rope.theta == 1_000_000
    assert header.checksum in result.output


def test_convert_refuses_what_it_cannot_do(tmp_path):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", TinyShape(theta=None))
    arguments = ["--input", str(source), "--output", str(tmp_path / "tiny.dfm")]
    assert isinstance(CliRunner().invoke(convert, arguments).exception, InvalidModelFile)
    result = CliRunner().invoke(convert, [*arguments, "--quant-type", "q5_k_m"])
    assert isinstance(result.exception, UnsupportedModel)


def test_pull_knows_only_the_catalogue(home):
    result = CliRunner().invoke(pull, ["nope"], obj=home)
    assert isinstance(result.exception, ModelNotFound)
