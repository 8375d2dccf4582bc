"""The engine's settings: a profile, what the environment says, what the command line says."""

from __future__ import annotations

import pytest

from api.settings import InvalidSettings, Settings
from engine.config import EngineConfig
from metering.errors import InvalidEnergySettings


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
        expert_cache_size=0,
    )
    assert Settings.read(profile="recommended").engine_config().draft_block_size == 8


def test_a_replica_has_the_settings_of_all_and_its_own_above_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DFLASH_ENGINE__THREADS", "2")
    monkeypatch.setenv("DFLASH_ENERGY__CPU_IDLE_W", "7")
    [(name, alone)] = Settings.read().replica_settings().items()
    assert (name, alone.engine.threads, alone.energy.cpu_idle_w) == ("main", 2, 7)
    monkeypatch.setenv("DFLASH_REPLICAS__ECO__ENGINE__THREADS", "1")
    monkeypatch.setenv("DFLASH_REPLICAS__FAST__ENERGY__CPU_DYNAMIC_W", "30")
    found = Settings.read().replica_settings()
    assert {name: each.engine.threads for name, each in found.items()} == {"eco": 1, "fast": 2}
    assert {each.energy.cpu_idle_w for each in found.values()} == {7}
    assert found["fast"].energy.cpu_dynamic_w == 30


@pytest.mark.parametrize(
    ("replicas", "fault"),
    [
        ('{"a b": {}}', "replica 'a b': a name"),
        ('{"a": {"motor": {}}}', "replica a: unknown setting: motor"),
        ('{"a": {"engine": {"wings": 2}}}', "unknown engine setting: wings"),
        ('{"a": {"energy": {"source": "sun"}}}', "'sun' is none of"),
    ],
)
def test_what_a_replica_cannot_have_is_named(
    monkeypatch: pytest.MonkeyPatch, replicas: str, fault: str
) -> None:
    monkeypatch.setenv("DFLASH_REPLICAS", replicas)
    with pytest.raises((InvalidSettings, InvalidEnergySettings), match=fault):
        Settings.read().replica_settings()


def test_an_unknown_profile_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DFLASH_PROFILE", "turbo")
    with pytest.raises(InvalidSettings, match="turbo"):
        Settings.read().engine_config()
