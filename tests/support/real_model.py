"""The real model, fetched by the code under test when it is not at hand. Never skipped."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from engine.dfm.catalogue import DEFAULT_MODEL, entry
from engine.dfm.pulling import pull, pull_gguf

REPOSITORY = Path(__file__).parents[2]


def home() -> Path:
    """The data folder that `make run` uses too."""
    return Path(os.environ.get("DFLASH_HOME") or REPOSITORY / "var")


@cache
def real_dfm() -> Path:
    """SmolLM2 135M Instruct as .dfm."""
    return pull(entry(DEFAULT_MODEL), home(), _silent)


@cache
def real_gguf() -> Path:
    """The GGUF that it was converted from."""
    return pull_gguf(entry(DEFAULT_MODEL), home(), _silent)


def _silent(stage: str, done: int, total: int | None) -> None:
    """Tests show no progress."""
