"""Energy from the counter to the request: settled, waited for, never partial, always conserved."""

from __future__ import annotations

import msgspec
import pytest
from energy_stored import energy_events, stored_parts
from metering_cases import (
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
from metering import clock, event_log, queries
from metering.bodies import EnergyBody
from metering.database import snapshot
from metering.energy.protocols import Reading
from metering.energy.track import UNMEASURED_STUCK_NS
from metering.events import EnergyClass
from metering.recorder import energy_books
from metering.tables import meter_windows

ONE_NODE = Work(verified_nodes=1)


@pytest.fixture(autouse=True)
def no_idle_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is scripted here, so the recorder's own clock must not close any of it as idle."""
    monkeypatch.setattr(energy_books, "WRITE_NS", 10**18)


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


def test_a_block_is_provisional_until_a_change_point_behind_it_settles_it(
    database: Engine,
) -> None:
    source = ScriptedSource(at_will=False, energy_class=EnergyClass.MEASURED)
    meter = scripted_meter(source)

    def energies(request_id: str = "req_1") -> list[str]:
        with snapshot(database) as connection:
            return [block.energy for block in queries.trace(connection, request_id).blocks]

    with recorder_rig(database, meter=meter, energy_wait_s=0) as rig:
        books = rig.recorder._books
        assert books is not None
        rig.track("req_1", "req_2")
        source.reading = Reading(10, 10_000, 0)
        meter.sample()
        rig.recorder.on_steps([step(0, block(0, "a"), start_ns=20, end_ns=30)])
        rig.recorder.on_steps([step(1, block(1, "b"), start_ns=30, end_ns=60)])
        books.write()
        assert energies() == ["provisional", "provisional"]
        source.reading = Reading(40, 40_000, 0)
        meter.sample()
        books.add([])
        books.write()
        assert energies() == ["settled", "provisional"]
        late = block(0, "c", request_id="req_2")
        ends = [finish("req_1", blocks=2), finish("req_2")]
        rig.recorder.on_steps([step(2, late, finishes=ends, start_ns=60, end_ns=90)])
        rig.sink.wait_for("req_1")
        rig.sink.wait_for("req_2")
    # What is known of a part of it is no figure of the request, whose receipt says so.
    assert energies() == ["unavailable", "unavailable"]
    assert energies("req_2") == ["unavailable"]


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


@pytest.mark.parametrize("fault", ["stuck", "lost"])
def test_nobody_waits_for_a_meter_that_is_broken(sqlite_database: Engine, fault: str) -> None:
    source = ScriptedSource(at_will=False)
    meter = scripted_meter(source)
    with recorder_rig(sqlite_database, meter=meter, energy_wait_s=60) as rig:
        rig.track("req_1")
        for at_ns, total_uj in ((10, 10), (20, 20), (30, 20), (UNMEASURED_STUCK_NS + 99, 20)):
            source.reading = Reading(at_ns, total_uj, 0)
            meter.sample()
        if fault == "lost":
            source.reading = Reading(UNMEASURED_STUCK_NS + 100, 30, 0)  # again
            meter.sample()
            source.reading = None
            meter.sample()
        rig.recorder.on_steps([step(0, block(0, "a"), finishes=[finish()])])
        if fault == "lost":
            assert rig.recorder.live_ids == ("req_1",), "it may be back at once"
            meter._tracks[0].lost_since_ns -= 60 * 10**9
        assert rig.sink.wait_for("req_1").energy.energy_uj is None


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


def test_idle_time_takes_no_part_in_what_comes_after_a_request_has_arrived(
    sqlite_database: Engine,
) -> None:
    source = ScriptedSource()
    with recorder_rig(sqlite_database, meter=scripted_meter(source)) as rig:
        source.reading = Reading(1_000, 10, 0)  # next to nothing: nobody had asked for anything
        reads = source.reads
        rig.track("req_1", "req_2")
        assert source.reads == reads + 1, "choices that arrive together take one reading"
        source.reading = Reading(2_000, 1_010, 0)
        computed = step(0, work={"req_1": ONE_NODE}, start_ns=1_000, end_ns=2_000)
        ends = [finish(blocks=0), finish("req_2", blocks=0)]
        rig.recorder.on_steps([computed, step(1, finishes=ends, start_ns=2_000)])
        summary = rig.sink.wait_for("req_1")
    assert summary.energy.energy_uj == 1_000


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
