"""Energy from the counter to the request: settled, waited for, never partial, always conserved."""

from __future__ import annotations

import msgspec
import pytest
from metering_cases import (
    INFO,
    Rig,
    ScriptedSource,
    WattSource,
    block,
    finish,
    recorder_rig,
    scripted_meter,
    step,
)
from sqlalchemy import Engine, func, select

from engine.records import FinishReason, RequestWork, Work
from metering import clock, event_log
from metering.bodies import EnergyBody
from metering.database import snapshot
from metering.energy.protocols import Reading
from metering.events import EnergyClass
from metering.recorder import energy_books
from metering.tables import meter_windows

PARTS = ("meter_uj", "requests_uj", "idle_uj", "overhead_uj", "external_uj", "unattributed_uj")
ONE_NODE = Work(verified_nodes=1)


@pytest.fixture(autouse=True)
def no_idle_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is scripted here, so the recorder's own clock must not close any of it as idle."""
    monkeypatch.setattr(energy_books, "WRITE_NS", 10**18)


def stored_parts(database: Engine) -> dict[str, int]:
    with snapshot(database) as connection:
        row = connection.execute(
            select(*(func.coalesce(func.sum(meter_windows.c[part]), 0) for part in PARTS))
        ).one()
    return {
        part.removesuffix("_uj"): int(value)
        for part, value in zip(PARTS, row, strict=True)
        if value
    }


def energy_events(database: Engine, request_id: str) -> list[EnergyBody]:
    with snapshot(database) as connection:
        events = event_log.of_request(connection, request_id)
    return [each for each in events if isinstance(each, EnergyBody)]


def test_requests_idle_and_overhead_make_up_the_meter(database: Engine) -> None:
    source = ScriptedSource()
    with recorder_rig(database, meter=scripted_meter(source)) as rig:
        rig.track("req_1", "req_2")
        source.reading = Reading(1000, 1000, 0)
        rig.recorder.on_steps(
            [
                step(
                    0,
                    block(0, "a"),
                    block(0, "b", request_id="req_2"),
                    start_ns=100,
                    end_ns=300,
                ),
                step(
                    1,
                    block(1, "c"),
                    work={"req_1": ONE_NODE, "stray": ONE_NODE},
                    finishes=[finish("req_1", blocks=2), finish("req_2")],
                    start_ns=400,
                    end_ns=600,
                ),
            ]
        )
        first, second = rig.sink.wait_for("req_1"), rig.sink.wait_for("req_2")
    assert (first.energy.energy_uj, second.energy.energy_uj) == (200, 100)
    assert first.energy.energy_class is EnergyClass.ESTIMATED
    assert first.energy.shown_uj == 0
    assert (first.energy.source, first.energy.scope) == ("cpu_time", "process")
    assert (first.energy.method, first.energy.uncertainty_pct) == ("affine-shapley/1", 40)
    # 0 to 100, 300 to 400 and 600 to 1000 are idle; the stray's half of a step is overhead.
    assert stored_parts(database) == {
        "meter": 1000,
        "requests": 300,
        "idle": 600,
        "overhead": 100,
    }


def test_those_who_ride_along_pay_for_the_work_with_whom_they_ride(database: Engine) -> None:
    """Given a leader that is cancelled: what is computed from then on is the follower's alone."""
    source = ScriptedSource()
    with recorder_rig(database, meter=scripted_meter(source)) as rig:
        rig.track("req_1", "req_2")
        source.reading = Reading(1000, 1000, 0)
        shared = (RequestWork("req_1", ONE_NODE, ("req_2",)),)
        both = [block(0, "a"), block(0, "a", request_id="req_2")]
        first = msgspec.structs.replace(step(0, *both, start_ns=0, end_ns=400), work=shared)
        rig.recorder.on_steps([first])
        rig.recorder.cancel("req_1")
        both = [block(1, "b"), block(1, "b", request_id="req_2")]
        ends = [finish("req_1", FinishReason.CANCELLED, blocks=2), finish("req_2", blocks=2)]
        second = step(1, *both, finishes=ends, start_ns=400, end_ns=1000)
        rig.recorder.on_steps([msgspec.structs.replace(second, work=shared)])
        left, stayed = rig.sink.wait_for("req_1"), rig.sink.wait_for("req_2")
    assert (left.blocks, left.energy.energy_uj) == (1, 200)
    assert (stayed.blocks, stayed.energy.energy_uj) == (2, 800)
    assert stored_parts(database) == {"meter": 1000, "requests": 1000}


def test_the_end_waits_for_a_coarse_counter_to_move(sqlite_database: Engine) -> None:
    source = ScriptedSource(at_will=False, energy_class=EnergyClass.MEASURED)
    meter = scripted_meter(source)
    with recorder_rig(sqlite_database, meter=meter, energy_wait_s=60) as rig:
        rig.track("req_1")
        source.reading = Reading(10, 10_000, 0)
        meter.sample()
        rig.recorder.on_steps(
            [step(0, block(0, "a", ""), finishes=[finish()], start_ns=20, end_ns=30)]
        )
        assert rig.recorder.live_ids == ("req_1",)
        source.reading = Reading(40, 40_000, 0)
        meter.sample()
        summary = rig.sink.wait_for("req_1")
    assert summary.energy.energy_uj == 10_000
    assert summary.energy.energy_class is EnergyClass.MEASURED


def test_an_end_does_not_wait_for_ever(sqlite_database: Engine) -> None:
    """What settles after it is nobody's in the books; the request is told of all that it took."""
    source = ScriptedSource(at_will=False)
    meter = scripted_meter(source)
    with recorder_rig(sqlite_database, meter=meter, energy_wait_s=0.05) as rig:
        rig.track("req_1")
        source.reading = Reading(10, 10, 0)
        meter.sample()
        rig.recorder.on_steps([step(0, block(0, "a"), finishes=[finish()], start_ns=20, end_ns=30)])
        summary = rig.sink.wait_for("req_1")
        assert summary.energy.energy_class is EnergyClass.UNAVAILABLE
        assert summary.energy.energy_uj is None
        source.reading = Reading(40, 40, 0)
        meter.sample()
    assert energy_events(sqlite_database, "req_1") == []
    assert stored_parts(sqlite_database) == {"meter": 30, "idle": 20, "unattributed": 10}
    late = rig.settlements.late["req_1"]
    assert (late.energy_uj, late.energy_class) == (10, EnergyClass.ESTIMATED)


def test_late_energy_is_told_with_what_had_settled_before_or_not_at_all(
    sqlite_database: Engine,
) -> None:
    """Given two requests of which one's last step lies across a reset: no partial total."""
    source = ScriptedSource(at_will=False)
    meter = scripted_meter(source)
    with recorder_rig(sqlite_database, meter=meter, energy_wait_s=0.05) as rig:
        rig.track("req_1", "req_2")
        for at_ns in (10, 40):
            source.reading = Reading(at_ns, at_ns, 0)
            meter.sample()
        both = [block(0, "a"), block(0, "x", request_id="req_2")]
        rig.recorder.on_steps(
            [
                step(0, *both, start_ns=20, end_ns=40),
                step(1, block(1, "b"), finishes=[finish(blocks=2)], start_ns=40, end_ns=50),
            ]
        )
        assert rig.sink.wait_for("req_1").energy.energy_uj is None
        source.reading = Reading(60, 60, 0)
        meter.sample()
        last = block(1, "y", request_id="req_2")
        ends = [finish("req_2", blocks=2)]
        rig.recorder.on_steps([step(2, last, finishes=ends, start_ns=60, end_ns=80)])
        assert rig.sink.wait_for("req_2").energy.energy_uj is None
        for at_ns, own_uj in ((70, 0), (90, 20), (100, 30)):
            source.reading = Reading(at_ns, own_uj, 0)
            meter.sample()
    assert {name: late.energy_uj for name, late in rig.settlements.late.items()} == {"req_1": 20}


def test_work_after_a_cancellation_is_overhead(sqlite_database: Engine) -> None:
    source = ScriptedSource()
    with recorder_rig(sqlite_database, meter=scripted_meter(source)) as rig:
        rig.track("req_1")
        source.reading = Reading(100, 100, 0)
        rig.recorder.on_steps([step(0, block(0, "a"), start_ns=0, end_ns=60)])
        rig.recorder.cancel("req_1")
        rig.recorder.on_steps(
            [
                step(
                    1,
                    block(1, "b"),
                    finishes=[finish(reason=FinishReason.CANCELLED, blocks=2)],
                    start_ns=60,
                    end_ns=100,
                )
            ]
        )
        summary = rig.sink.wait_for("req_1")
    assert summary.energy.energy_uj == 60
    assert stored_parts(sqlite_database) == {"meter": 100, "requests": 60, "overhead": 40}


def test_a_block_that_the_hold_did_not_cover_at_all_is_overhead(sqlite_database: Engine) -> None:
    source = ScriptedSource()
    with recorder_rig(sqlite_database, meter=scripted_meter(source)) as rig:
        rig.track("req_1")
        rig.gate.tokens_max["req_1"] = 2
        source.reading = Reading(100, 100, 0)
        rig.recorder.on_steps(
            [
                step(0, block(0, "a"), start_ns=0, end_ns=10),
                step(1, block(1, "b", "c"), start_ns=10, end_ns=30),
                step(2, block(2, "d"), start_ns=30, end_ns=60),
                step(3, finishes=[finish(blocks=3)], start_ns=60, end_ns=60),
            ]
        )
        summary = rig.sink.wait_for("req_1")
    assert summary.energy.energy_uj == 30
    assert stored_parts(sqlite_database) == {
        "meter": 100,
        "requests": 30,
        "overhead": 30,
        "idle": 40,
    }


def test_energy_before_the_first_block_counts(sqlite_database: Engine) -> None:
    source = ScriptedSource()
    with recorder_rig(sqlite_database, meter=scripted_meter(source)) as rig:
        rig.track("req_1")
        source.reading = Reading(100, 100, 0)
        prefill = step(0, work={"req_1": Work(prefill_tokens=5)}, start_ns=0, end_ns=70)
        rig.recorder.on_steps([prefill, step(1, finishes=[finish(blocks=0)], start_ns=80)])
        summary = rig.sink.wait_for("req_1")
    assert (summary.blocks, summary.energy.energy_uj) == (0, 70)


def test_a_reset_makes_the_request_unavailable_and_not_its_neighbour(
    sqlite_database: Engine,
) -> None:
    source = ScriptedSource()
    meter = scripted_meter(source)
    with recorder_rig(sqlite_database, meter=meter) as rig:
        rig.track("req_1", "req_2")
        source.reading = Reading(10, 500, 0)
        rig.recorder.on_steps([step(0, block(0, "a"), start_ns=0, end_ns=10)])
        source.reading = Reading(20, 0, 0)  # the driver was loaded again within the next step
        meter.sample()
        source.reading = Reading(40, 20, 0)
        rig.recorder.on_steps(
            [
                step(1, block(1, "b"), finishes=[finish(blocks=2)], start_ns=10, end_ns=30),
                step(
                    2,
                    block(0, "x", request_id="req_2"),
                    finishes=[finish("req_2")],
                    start_ns=30,
                    end_ns=40,
                ),
            ]
        )
        first, second = rig.sink.wait_for("req_1"), rig.sink.wait_for("req_2")
    assert first.energy.energy_uj is None, "a partial total is no figure"
    assert second.energy.energy_uj == 10
    known = [each.energy_uj for each in energy_events(sqlite_database, "req_1")]
    assert known == [500, None]
    assert stored_parts(sqlite_database) == {"meter": 520, "requests": 510, "unattributed": 10}


def test_without_a_meter_energy_is_null_and_nothing_waits(sqlite_database: Engine) -> None:
    with recorder_rig(sqlite_database) as rig:
        rig.track("req_1")
        rig.recorder.on_steps([step(0, block(0, "a", ""), finishes=[finish()])])
        summary = rig.sink.wait_for("req_1")
    assert summary.energy.energy_class is EnergyClass.UNAVAILABLE
    assert summary.energy.energy_uj is None
    assert stored_parts(sqlite_database) == {}


def test_energy_is_written_while_a_request_still_runs(
    sqlite_database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a crash loses a second of it, and the log and the windows still agree."""
    monkeypatch.setattr(energy_books, "WRITE_NS", 10**6)
    with recorder_rig(sqlite_database, meter=scripted_meter(WattSource())) as rig:
        rig.track("req_1")
        run_until_written(rig)
        with snapshot(sqlite_database) as connection:
            events = event_log.of_request(connection, "req_1")
            attributed = connection.scalar(select(func.sum(meter_windows.c.requests_uj)))
    energy = [each.energy_uj or 0 for each in events if isinstance(each, EnergyBody)]
    assert sum(energy) == attributed


def run_until_written(rig: Rig) -> None:
    start_ns = clock.monotonic_ns()
    for index in range(10_000):
        end_ns = clock.monotonic_ns()
        rig.recorder.on_steps([step(index, block(index, "a"), start_ns=start_ns, end_ns=end_ns)])
        start_ns = end_ns
        if energy_events(rig.database, "req_1"):
            return
        rig.recorder._closer.wake()
    raise AssertionError("no energy was written")


def test_the_gate_sees_energy_before_it_is_written(sqlite_database: Engine) -> None:
    source = ScriptedSource()
    with recorder_rig(sqlite_database, meter=scripted_meter(source)) as rig:
        rig.track("req_1")
        source.reading = Reading(2_000_000, 2_000_000, 0)
        rig.recorder.on_steps([step(0, block(0, "a"), start_ns=0, end_ns=1_500_000)])
        rig.recorder.on_steps([step(1, block(1, "b"), start_ns=1_500_000, end_ns=1_600_000)])
    assert [each.energy.energy_uj for each in rig.gate.seen] == [None, 1_500_000]
    assert rig.gate.seen[1].energy.shown_uj == 1_500_000


def test_after_a_crash_unsettled_blocks_make_energy_unavailable(database: Engine) -> None:
    source = ScriptedSource()
    with recorder_rig(database, meter=scripted_meter(source)) as rig:
        rig.track("req_1", "req_2")
        source.reading = Reading(100, 100, 0)
        rig.recorder.on_steps(
            [step(0, block(0, "a"), block(0, "x", request_id="req_2"), start_ns=0, end_ns=100)]
        )
        assert rig.recorder._books is not None
        rig.recorder._books.write()
        source.reading = None  # from here on nothing settles
        rig.recorder.on_steps([step(1, block(1, "b"), start_ns=100, end_ns=150)])
    with recorder_rig(database, with_tenant=False) as rig:
        assert rig.recorder.recover() == 2
    assert rig.sink.summaries["req_1"].energy.energy_uj is None
    assert rig.sink.summaries["req_2"].energy.energy_uj == 50


def test_a_replaced_engine_is_metered_anew_and_the_lost_one_no_further(
    sqlite_database: Engine,
) -> None:
    lost, fresh = ScriptedSource(), ScriptedSource()
    with recorder_rig(sqlite_database, meter=scripted_meter(lost)) as rig:
        rig.track("req_1", "req_2")
        lost.reading = Reading(50, 50, 0)
        rig.recorder.on_steps([step(0, block(0, "a"), start_ns=0, end_ns=50)])
        lost.reading = None  # its process is gone, and with it the counter
        rig.recorder.on_steps(
            [
                step(1, block(1, "b"), start_ns=50, end_ns=70),
                step(
                    2,
                    finishes=[finish(reason=FinishReason.ERROR, blocks=2, detail="engine lost")],
                    start_ns=70,
                    end_ns=70,
                ),
            ]
        )
        fresh.reading = Reading(100, 7, 0)
        rig.recorder.attach(rig.canceller, scripted_meter(fresh), INFO)
        fresh.reading = Reading(200, 107, 0)
        rig.recorder.on_steps(
            [
                step(
                    0,
                    block(0, "x", request_id="req_2"),
                    finishes=[finish("req_2")],
                    epoch="engine-2",
                    start_ns=110,
                    end_ns=150,
                )
            ]
        )
        first, second = rig.sink.wait_for("req_1"), rig.sink.wait_for("req_2")
    assert lost.closed
    assert first.energy.energy_uj is None, "its last step was never known"
    assert second.energy.energy_uj == 40
    assert stored_parts(sqlite_database) == {"meter": 150, "requests": 90, "idle": 60}


PREFILL = Work(prefill_tokens=5)


def test_a_prompt_whose_last_part_is_not_settled_has_no_figure_for_the_others(
    sqlite_database: Engine,
) -> None:
    """No block says how far it got, so a part of its energy must not pass for all of it."""
    source = ScriptedSource()
    with recorder_rig(sqlite_database, meter=scripted_meter(source), energy_wait_s=0.05) as rig:
        rig.track("req_1")
        source.reading = Reading(100, 100, 0)
        rig.recorder.on_steps([step(0, work={"req_1": PREFILL}, start_ns=0, end_ns=60)])
        source.reading = None  # from here on the meter is lost
        rig.recorder.on_steps(
            [
                step(1, work={"req_1": PREFILL}, start_ns=60, end_ns=150),
                step(2, finishes=[finish(reason=FinishReason.CANCELLED, blocks=0)], start_ns=150),
            ]
        )
        summary = rig.sink.wait_for("req_1")
        assert summary.energy.energy_uj is None
        source.reading = Reading(200, 200, 0)
        assert rig.recorder._books is not None
        rig.recorder._books.sample()
        rig.recorder._books.tick(10**19, is_idle=False)
    assert rig.settlements.late["req_1"].energy_uj == 150
    assert [each.energy_uj for each in energy_events(sqlite_database, "req_1")] == [60, None]


def test_a_prompt_that_a_lost_engine_had_half_read_has_no_figure(sqlite_database: Engine) -> None:
    lost, fresh = ScriptedSource(), ScriptedSource()
    meter = scripted_meter(lost)
    with recorder_rig(sqlite_database, meter=meter, energy_wait_s=0.05) as rig:
        rig.track("req_1")
        lost.reading = Reading(50, 50, 0)
        rig.recorder.on_steps([step(0, work={"req_1": PREFILL}, start_ns=0, end_ns=50)])
        lost.reading = None
        rig.recorder.on_steps([step(1, work={"req_1": PREFILL}, start_ns=50, end_ns=70)])
        fresh.reading = Reading(100, 7, 0)
        rig.recorder.attach(rig.canceller, scripted_meter(fresh), INFO)
        ended = step(2, finishes=[finish(reason=FinishReason.ERROR, blocks=0)], start_ns=90)
        rig.recorder.on_steps([ended])
        summary = rig.sink.wait_for("req_1")
    assert summary.energy.energy_uj is None
    assert not rig.settlements.late


def test_a_prompt_that_a_crash_interrupted_has_no_figure(database: Engine) -> None:
    """Which steps there were after the last one that was written, nobody knows any more."""
    source = ScriptedSource()
    with recorder_rig(database, meter=scripted_meter(source)) as rig:
        rig.track("req_1")
        source.reading = Reading(100, 100, 0)
        rig.recorder.on_steps([step(0, work={"req_1": PREFILL}, start_ns=0, end_ns=60)])
        assert rig.recorder._books is not None
        rig.recorder._books.write()
    with recorder_rig(database, with_tenant=False) as rig:
        assert rig.recorder.recover() == 1
    assert rig.sink.summaries["req_1"].energy.energy_uj is None
