"""What was taken from a package registry is exactly what was published there, licence included."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from dashboards.rendering import STATIC

VENDORED = sorted(path for path in (STATIC / "vendor").iterdir() if path.is_dir())


@pytest.mark.parametrize("folder", VENDORED, ids=lambda path: path.name)
def test_vendored_files_are_the_published_ones(folder: Path) -> None:
    stated = json.loads((folder / "VERSION.json").read_text())
    assert stated["version"]
    assert stated["licence"] == "MIT"
    present = {path.name for path in folder.iterdir()} - {"VERSION.json"}
    assert present == set(stated["files"])
    for name, digest in stated["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert "Permission is hereby granted" in (folder / "LICENSE.md").read_text()


def test_the_charts_ask_for_nothing_but_what_is_shipped() -> None:
    for path in (*STATIC.glob("*.js"), *STATIC.glob("*.css")):
        text = path.read_text()
        assert "http:" not in text, path
        assert "https:" not in text, path
