from __future__ import annotations

import pytest
from tiny_models import write_tiny_dfm

from engine.dfm.catalogue import CATALOGUE, DEFAULT_MODEL, entry, installed, resolve
from engine.errors import ModelNotFound


@pytest.fixture
def home(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path


def test_a_name_stands_for_a_file_in_the_models_folder(home):
    path = write_tiny_dfm(home / "models" / "tiny.dfm")
    assert resolve(home, "tiny") == path


def test_a_path_stands_for_itself(home):
    path = write_tiny_dfm(home / "elsewhere.dfm")
    assert resolve(home / "other", str(path)) == path
    assert resolve(home / "other", path) == path


def test_a_known_model_that_is_not_fetched_says_how_to_fetch_it(home):
    with pytest.raises(ModelNotFound, match=f"run `dflash pull {DEFAULT_MODEL}`"):
        resolve(home, DEFAULT_MODEL)


def test_an_unknown_name_lists_what_is_known(home):
    write_tiny_dfm(home / "models" / "tiny.dfm")
    with pytest.raises(ModelNotFound, match=f"no model nope .*known: {DEFAULT_MODEL}, tiny"):
        resolve(home, "nope")


def test_an_absent_path_is_named(home):
    with pytest.raises(ModelNotFound, match=r"no model file at .*absent\.dfm"):
        resolve(home, home / "absent.dfm")


def test_a_broken_model_is_listed_with_its_fault(home):
    write_tiny_dfm(home / "models" / "whole.dfm")
    (home / "models" / "broken.dfm").write_bytes(b"nothing")
    broken, whole = installed(home)
    assert (broken.name, broken.header) == ("broken", None)
    assert "not a .dfm file" in (broken.fault or "")
    assert whole.fault is None
    assert whole.header is not None


def test_nothing_is_installed_in_a_home_that_does_not_exist(tmp_path):
    assert installed(tmp_path / "absent") == []


def test_only_models_of_the_catalogue_can_be_fetched():
    assert entry(DEFAULT_MODEL).licence == "Apache-2.0"
    with pytest.raises(ModelNotFound, match=f"there is: {', '.join(CATALOGUE)}"):
        entry("nope")
