"""Arms taking turns: who runs what, in which order, and what is concluded."""

from __future__ import annotations

import msgspec
import pytest
from bench_runs import ToldArm, ask

from engine.bench.comparison import Arm, Comparison, cells_of, compared, play
from engine.bench.variants import OURS, VARIANTS
from engine.config import EngineConfig


def compare(
    *arms: Arm, concurrencies: list[int], rounds: int = 3, within_s: float | None = None
) -> Comparison:
    asks = [ask("c1"), ask("c2"), ask("m1", "maths"), ask("m2", "maths"), ask("m3", "maths")]
    played = play(
        arms,
        cells_of(asks, concurrencies, [1]),
        rounds=rounds,
        max_tokens=8,
        temperature=0.0,
        seed=0,
        within_s=within_s,
    )
    return compared(played, greedy=True)


def test_categories_run_alone_or_mixed_in_turn_and_a_batch_is_always_full() -> None:
    asks = [ask("c1"), ask("c2"), ask("m1", "maths")]
    cells = cells_of(asks, [1, 4], [1])
    assert [(cell.concurrency, cell.category) for cell in cells] == [
        (1, "code"),
        (1, "maths"),
        (4, None),
    ]
    assert [each.id for each in cells[2].asks] == ["c1", "m1", "c2", "c1#2"]
    assert [each.id for each in cells_of(asks, [2], [1])[0].asks] == ["c1", "m1"]
    [only] = cells_of(asks[:2], [4], [1])
    assert (only.category, len(only.asks)) == ("code", 4)
    [sustained] = cells_of(asks, [2], [1], waves=2)
    assert [each.id for each in sustained.asks] == ["c1", "m1", "c2", "c1#2"]


def test_every_arm_does_every_workload_once_a_round_and_none_is_always_first() -> None:
    engine = ToldArm()
    arms = [Arm("dflash", engine, own=True), Arm("a", engine, "a"), Arm("b", engine, "b")]
    compare(*arms, concurrencies=[1, 2])
    warmth, heard = engine.heard[:3], engine.heard[3:]
    assert [each.variant for each in warmth] == ["", "a", "b"]
    assert len(heard) == 3 * 3 * len(arms)
    firsts = {workload.variant for workload in heard[:: len(arms)]}
    assert firsts == {"", "a", "b"}
    for start in range(0, len(heard), len(arms)):
        turn = heard[start : start + len(arms)]
        assert {workload.variant for workload in turn} == {"", "a", "b"}
        assert len({workload.asks for workload in turn}) == 1


def test_ratios_are_ours_to_theirs_by_concurrency_and_category() -> None:
    found = compare(
        Arm("dflash", ToldArm(ms=100), own=True),
        Arm("llama.cpp", ToldArm(ms=250)),
        Arm("llama.cpp+lookup", ToldArm(ms=50), concurrency_max=1),
        concurrencies=[1, 8],
    )
    assert found.ratios == {
        "llama.cpp": {"1": pytest.approx(2.5), "8": pytest.approx(2.5)},
        "llama.cpp+lookup": {"1": pytest.approx(0.5)},
    }
    assert found.prefill_ratios["llama.cpp"]["8"] == pytest.approx(2.5)
    assert set(found.ratios_by_category["llama.cpp"]["1"]) == {"code", "maths"}
    assert found.rounds == 3
    rows = {(row.arm, row.concurrency, row.category) for row in found.results}
    assert ("llama.cpp", 8, "maths") in rows
    assert ("llama.cpp+lookup", 8, None) not in rows
    mixed = [row for row in found.results if row.concurrency == 8 and row.category == "maths"]
    assert all(row.decode_tokens_per_s is None for row in mixed)
    document = msgspec.json.decode(msgspec.json.encode(found))
    assert document["ratios"]["llama.cpp"]["8"] == pytest.approx(2.5)


def test_arms_of_ours_must_say_the_same_and_peers_need_not() -> None:
    def other(_ask: object, _workload: object) -> tuple[int, ...]:
        return (1, 2, 9)

    ours = Arm("dflash", ToldArm(), own=True)
    peer = Arm("llama.cpp", ToldArm(says=other))
    found = compare(ours, peer, concurrencies=[1])
    assert found.identical
    assert found.agreement == {"llama.cpp": pytest.approx(2 / 3)}
    variant = Arm("restart", ToldArm(says=other), own=True)
    assert not compare(ours, variant, concurrencies=[1]).identical


def test_time_that_is_up_ends_it_after_a_whole_round() -> None:
    found = compare(Arm("dflash", ToldArm(), own=True), concurrencies=[1], within_s=0.0)
    assert found.rounds == 1


def test_every_variant_is_a_configuration() -> None:
    for name, variant in VARIANTS.items():
        config = variant.config(EngineConfig())
        assert (config == EngineConfig()) <= (variant.warm or name in (OURS, "tree", "anchor"))
    assert not VARIANTS["verifier-only"].config(EngineConfig()).draft
