"""The meter: change points of coarse counters, epochs, loss, and its sampling thread."""

from __future__ import annotations

import threading

import msgspec
import pytest
from metering_cases import ScriptedSource, no_meter, scripted_meter

from metering.energy import EnergyMeter
from metering.energy import meter as meter_module
from metering.energy.meter import Segment
from metering.energy.protocols import Reading


def read(meter: EnergyMeter, source: ScriptedSource, *readings: Reading | None) -> None:
    for reading in readings:
        source.reading = reading
        meter.sample()


def test_a_coarse_counter_is_known_only_where_it_moved() -> None:
    source = ScriptedSource(at_will=False)
    meter = scripted_meter(source)
    read(meter, source, Reading(0, 50, 0), Reading(10, 50, 0))
    assert meter.known_until_ns is None, "when the first value began to hold is unknown"
    read(meter, source, Reading(20, 90, 0), Reading(30, 90, 0), Reading(40, 130, 0))
    assert (meter.known_from_ns, meter.known_until_ns) == (20, 40)
    assert [segment.own_uj for segment in meter.segments(0, 100)] == [40]


def test_a_source_read_at_will_is_known_up_to_each_reading() -> None:
    source = ScriptedSource()
    meter = scripted_meter(source)
    read(meter, source, Reading(0, 5, 1), Reading(10, 5, 1))
    assert meter.known_until_ns == 10
    source.reading = Reading(20, 25, 4)
    meter.sample_now()
    [segment] = meter.segments(0, 20)
    assert msgspec.structs.astuple(segment)[1:] == (0, 20, 20, 3)


def test_a_coarse_counter_cannot_be_sampled_on_demand() -> None:
    source = ScriptedSource(at_will=False)
    meter = scripted_meter(source)
    read(meter, source, Reading(0, 0, 0))
    source.reading = Reading(10, 9, 0)
    meter.sample_now()
    assert meter.known_until_ns is None


def test_a_counter_that_falls_begins_a_new_epoch() -> None:
    source = ScriptedSource()
    meter = scripted_meter(source)
    read(meter, source, Reading(0, 100, 0), Reading(10, 200, 0), Reading(20, 3, 0))
    read(meter, source, Reading(30, 8, 0))
    first, second = meter.segments(0, 100)
    assert (first.start_ns, first.end_ns, first.own_uj) == (0, 10, 100)
    assert (second.start_ns, second.end_ns, second.own_uj) == (20, 30, 5)
    assert first.epoch != second.epoch


def test_a_lost_source_leaves_the_curve_and_its_return_continues_it() -> None:
    source = ScriptedSource()
    meter = scripted_meter(source)
    read(meter, source, Reading(0, 0, 0), None, None)
    assert meter.known_until_ns == 0
    read(meter, source, Reading(10, 40, 0))
    assert [segment.own_uj for segment in meter.segments(0, 10)] == [40]


def test_a_source_that_fails_in_a_way_nobody_foresaw_is_lost_for_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = ScriptedSource()
    meter = scripted_meter(source)
    read(meter, source, Reading(0, 0, 0))
    with monkeypatch.context() as patched:

        def fail() -> Reading:
            raise OverflowError("a total that is no number")

        patched.setattr(source, "read", fail)
        meter.sample_now()
    assert meter.known_until_ns == 0
    read(meter, source, Reading(10, 40, 0))
    assert [segment.own_uj for segment in meter.segments(0, 10)] == [40]


def test_adjoining_stretches_add_up() -> None:
    source = ScriptedSource()
    meter = scripted_meter(source)
    read(meter, source, Reading(0, 0, 0), Reading(7, 10, 3), Reading(9, 11, 3))
    [whole] = meter.segments(0, 9)
    parts: list[Segment] = [meter.segments(at, at + 1)[0] for at in range(9)]
    assert sum(part.own_uj for part in parts) == whole.own_uj
    assert sum(part.external_uj for part in parts) == whole.external_uj


def test_forgetting_drops_epochs_that_are_over() -> None:
    source = ScriptedSource()
    meter = scripted_meter(source)
    read(meter, source, Reading(0, 9, 0), Reading(10, 19, 0), Reading(20, 0, 0))
    read(meter, source, Reading(30, 5, 0))
    meter.forget_before(25)
    assert meter.known_from_ns == 20
    assert [segment.own_uj for segment in meter.segments(25, 30)] == [3]


def test_the_sampler_runs_on_its_own_and_stops_when_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meter_module, "IDLE_S", 0.001)
    sampled = threading.Event()

    class Counting(ScriptedSource):
        count = 0

        def read(self) -> Reading:
            self.count += 1
            if self.count == 4:
                sampled.set()
            return Reading(self.count, self.count, 0)

    source = Counting()
    meter = EnergyMeter(source, period_ms=1)
    meter.start()
    assert sampled.wait(20)
    meter.close()
    count = source.count
    assert source.closed
    assert meter.known_until_ns == count


def test_a_counter_is_read_often_only_while_something_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter_module, "IDLE_S", 600.0)
    monkeypatch.setattr(meter_module, "MEASURING_S", 0.0)
    read_again = threading.Event()

    class Counting(ScriptedSource):
        def read(self) -> Reading:
            self.reads += 1
            if self.reads == 5:
                read_again.set()
            return Reading(self.reads, self.reads, 0)

    source = Counting(at_will=False)
    source.is_counter = False  # one whose period is known
    meter = EnergyMeter(source, period_ms=1)
    meter.start()
    assert source.reads == 1
    meter.watch()
    assert source.reads >= 2, "what was before is parted from what comes"
    assert read_again.wait(20)
    meter.close()


def test_a_slow_counter_is_read_often_until_its_period_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(meter_module, "IDLE_S", 600.0)
    monkeypatch.setattr(meter_module, "MEASURING_S", 0.0)
    measured = threading.Event()

    class Slow(ScriptedSource):
        """Each reading comes a tenth of a second after the last; it moves every 2.5 s."""

        def read(self) -> Reading:
            self.reads += 1
            return Reading(self.reads * 10**8, self.reads // 25 * 1000, 0)

    def noted(_event: str, *, update_period_us: int) -> None:
        assert update_period_us == 2_500_000
        measured.set()

    monkeypatch.setattr(meter_module.log, "info", noted)
    meter = EnergyMeter(Slow(at_will=False), period_ms=1)
    meter.start()
    assert measured.wait(20)
    meter.close()
    assert meter.provenance.update_period_us == 2_500_000
    [whole] = meter.segments(0, 2**62)
    assert whole.own_uj >= 1000


def test_without_a_source_the_meter_says_so_and_does_nothing() -> None:
    meter = no_meter()
    meter.start()
    meter.sample_now()
    assert not meter.available
    assert meter.known_until_ns is None
    assert meter.segments(0, 10) == []
    meter.close()


@pytest.mark.parametrize("closings", [1, 2])
def test_a_meter_that_never_started_can_be_closed(closings: int) -> None:
    source = ScriptedSource()
    meter = scripted_meter(source)
    for _ in range(closings):
        meter.close()
    assert source.closed
