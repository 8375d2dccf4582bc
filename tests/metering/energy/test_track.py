"""One device's counter: what of its readings is believed, and what begins another epoch."""

from __future__ import annotations

import pytest
from metering_cases import ScriptedSource, scripted_meter
from structlog.testing import capture_logs

from metering.energy.protocols import Reading
from metering.energy.track import Track
from metering.events import EnergyClass

MS = 10**6


def counter(**given: object) -> Track:
    """A coarse counter of a board that draws 100 W at most."""
    source = ScriptedSource(
        at_will=False, energy_class=EnergyClass.MEASURED, power_max_w=100.0, **given
    )
    return Track(source)


def take(track: Track, *readings: tuple[int, int]) -> list[str]:
    """Take readings of (milliseconds, millijoules); returns what is logged of them."""
    with capture_logs() as logged:
        for at_ms, own_mj in readings:
            track.take(Reading(at_ms * MS, own_mj * 1000, 0))
    return [entry["event"] for entry in logged]


def known(track: Track) -> list[tuple[int, int, int]]:
    """The known stretches, in milliseconds and millijoules."""
    return [
        (low // MS, high // MS, (curve.at(high).own_uj - curve.at(low).own_uj) // 1000)
        for low, high, curve in track.within(0, 2**62)
    ]


def test_a_reading_that_is_not_later_is_left_out() -> None:
    track = Track(ScriptedSource())
    assert take(track, (5, 1), (5, 2), (4, 3), (6, 4)) == []
    assert known(track) == [(5, 6, 3)]


def test_a_rise_that_no_board_can_draw_begins_another_epoch() -> None:
    """At 100 W it may have risen by 5 J in 50 ms, but not by 500."""
    track = counter()
    said = take(track, (0, 0), (50, 4000), (100, 8000), (150, 508_000), (200, 512_000))
    assert said == ["energy.impossible_jump"]
    take(track, (250, 516_000))
    assert known(track) == [(50, 100, 4000), (200, 250, 4000)]


def test_a_counter_of_a_board_without_a_limit_does_not_leap_out_of_64_bits() -> None:
    """All ones is what a broken counter says; a window of it could not be stored, nor any after."""
    track = Track(ScriptedSource(at_will=False))
    assert take(track, (0, 0), (50, 50_000), (100, 2**64 - 1)) == ["energy.impossible_jump"]
    assert take(track, (150, 60_000), (200, 110_000), (250, 160_000)) == ["energy.counter_reset"]
    assert known(track) == [(200, 250, 50_000)]


def test_a_rise_after_a_long_silence_is_judged_by_its_length() -> None:
    track = counter()
    assert take(track, (0, 0), (50, 4000), (10_000, 900_000)) == []
    assert known(track) == [(50, 10_000, 896_000)]


def test_another_origin_is_another_epoch_though_the_total_rose() -> None:
    track = counter()
    take(track, (0, 0), (50, 10), (100, 20))
    track.take(Reading(150 * MS, 30_000, 0, origin=1))
    track.take(Reading(200 * MS, 40_000, 0, origin=1))
    track.take(Reading(250 * MS, 55_000, 0, origin=1))
    assert known(track) == [(50, 100, 10), (200, 250, 15)]


def test_a_counter_that_stands_still_for_too_long_has_stopped_counting() -> None:
    track = counter()
    still = [(at, 200) for at in range(150, 2500, 50)]
    take(track, (0, 0), (50, 100), (100, 200))
    track.settle_period()
    assert take(track, *still) == ["energy.counter_stuck"]
    assert take(track, (2500, 900), (2550, 950), (2600, 1000)) == ["energy.counter_moves_again"]
    assert known(track) == [(50, 100, 100), (2550, 2600, 50)]


def test_a_counter_that_is_slow_has_not_stopped_while_its_period_is_not_known() -> None:
    """It moves every 7 s: more than the 2 s that a fast one may stand still."""
    track = counter()
    readings = [(at, at // 7000 * 100) for at in range(0, 45_000, 500)]
    assert take(track, *readings) == []
    assert known(track) == [(7000, 42_000, 500)]
    track.settle_period()
    assert track.provenance.update_period_us == 7_000_000
    assert take(track, *((at, 600) for at in range(45_000, 180_000, 500))) == []
    assert take(track, *((at, 600) for at in range(180_000, 184_000, 500))) == [
        "energy.counter_stuck"
    ]


def test_a_counter_that_never_moves_has_stopped_after_a_minute() -> None:
    track = counter()
    assert take(track, *((at, 7) for at in range(0, 60_001, 1000))) == []
    assert track.is_being_measured
    assert take(track, *((at, 7) for at in range(61_000, 70_000, 1000))) == ["energy.counter_stuck"]
    assert not track.is_being_measured, "it is left alone"


def test_its_update_period_is_the_median_of_its_moves() -> None:
    track = counter()
    assert not track.has_period
    moves = (0, 20, 40, 61, 80, 200, 220)
    take(track, *((at, at) for at in range(241) if at in moves))
    assert track.has_period
    track.settle_period()
    assert track.provenance.update_period_us == 20_000


def test_what_is_no_counter_has_no_period_and_may_stand_still() -> None:
    track = Track(ScriptedSource())
    assert track.has_period
    assert take(track, *((at, 7) for at in range(0, 5000, 500))) == []
    assert known(track) == [(0, 4500, 0)]


@pytest.mark.parametrize("lost", [0, 1])
def test_a_group_is_known_where_all_of_its_devices_are(lost: int) -> None:
    sources = [ScriptedSource(device=f"GPU-{index}") for index in range(2)]
    meter = scripted_meter(*sources)
    for at_ns in (0, 10, 20, 30, 40):
        for index, source in enumerate(sources):
            gone = index == lost and at_ns in (20, 30)
            source.reading = None if gone else Reading(at_ns, at_ns * (index + 1), 0, at_ns // 20)
        meter.sample()
    # The other device has an epoch of its own from 20 to 30, in which the sum is not known.
    segments = [(each.start_ns, each.end_ns, each.own_uj) for each in meter.segments(0, 100)]
    assert segments == [(0, 10, 30)]
    assert meter.provenance.devices == ("GPU-0", "GPU-1")
