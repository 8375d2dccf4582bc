"""The engine's settings: a profile, what the environment says, what the command line says."""

from __future__ import annotations

import pytest

from api.settings import InvalidSettings, Settings
from engine.config import EngineConfig


def test_flags_are_above_the_environment_and_that_above_the_profile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DFLASH_PROFILE", "default")
    monkeypatch.setenv("DFLASH_ENGINE__THREADS", "2")
    monkeypatch.setenv("DFLASH_ENGINE__NODE_BUDGET", "5")
    settings = Settings.read(engine={"node_budget": 6, "entropy_threshold": 1.0})
    assert settings.engine_config() == EngineConfig(
        draft_block_size=4,
        verifier_batch_size=1,
        entropy_threshold=1.0,
        node_budget=6,
        threads=2,
    )
    assert Settings.read(profile="recommended").engine_config().draft_block_size == 8


def test_an_unknown_profile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_PROFILE", "turbo")
    with pytest.raises(InvalidSettings, match="turbo"):
        Settings.read().engine_config()
