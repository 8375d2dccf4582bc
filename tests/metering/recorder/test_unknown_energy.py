"""Energy that can't be known whole is no figure: after a reset, a crash or a loss."""

from __future__ import annotations

import pytest
from energy_stored import energy_events, stored_parts
from metering_cases import (
    INFO,
    ScriptedSource,
    block,
    finish,
    recorder_rig,
    scripted_meter,
    step,
)
from sqlalchemy import Engine

from engine.records import FinishReason, Work
from metering.energy.protocols import Reading
from metering.events import EnergyClass
from metering.recorder import energy_books

PREFILL = Work(prefill_tokens=5)


@pytest.fixture(autouse=True)
def no_idle_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is scripted here, so the recorder's own clock must not close any of it as idle."""
    monkeypatch.setattr(energy_books, "WRITE_NS", 10**18)


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
        rig.recorder._books.watch()
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
