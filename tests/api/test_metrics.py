"""What `/metrics` says of an engine's experts."""

from __future__ import annotations

from types import SimpleNamespace

from api.metrics import GatewayCollector
from dashboards.protocols import EngineState
from engine.records import CacheCounters, DraftCounters, EngineStats, ExpertCounters


def families(experts: ExpertCounters | None) -> dict[str, float]:
    """The engine's families of one sample, by name."""
    stats = EngineStats(
        *(0, 0, True, DraftCounters(), 0, 0, 0, 0, None), caches=CacheCounters(experts=experts)
    )
    gateway = SimpleNamespace(engine_states=lambda: [EngineState("only", None, stats, None)])
    return {
        family.name: family.samples[0].value
        for family in GatewayCollector(gateway)._engine()
        if family.samples
    }


def test_a_model_with_experts_says_what_it_found_of_them() -> None:
    found = families(ExpertCounters(kept=96, lookups=400, hits=350, evictions=7))
    assert found["dflash_engine_expert_lookups"] == 400
    assert found["dflash_engine_expert_hits"] == 350
    assert found["dflash_engine_expert_evictions"] == 7
    assert found["dflash_expert_cache_hit_ratio"] == 0.875


def test_a_ratio_of_nothing_and_experts_that_are_not_there_are_left_out() -> None:
    assert "dflash_expert_cache_hit_ratio" not in families(ExpertCounters(kept=96))
    assert not [name for name in families(None) if "expert" in name]
