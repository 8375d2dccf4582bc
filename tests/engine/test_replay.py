"""Work that is done again is done plainly: nothing is prepared for drafts that are not made."""

from __future__ import annotations

from pathlib import Path

from tiny_models import write_tiny_dfm

from engine.config import EngineConfig
from engine.replay import Replayer


def test_a_replayer_measures_no_steps_and_loads_no_head(tmp_path: Path) -> None:
    path = write_tiny_dfm(tmp_path / "tiny.dfm")
    replayer = Replayer.open(path, EngineConfig(draft=True, threads=1))
    assert replayer._model.curve is None
    assert replayer._model.foresight.head is None
    assert replayer.info.model == "tiny"
