"""The curve of cumulative energy: integer, monotone, and exact in every partition."""

from __future__ import annotations

import pytest

from metering.energy import curve as curves
from metering.energy.curve import Curve, Totals
from metering.energy.protocols import Reading


def drawn(*points: tuple[int, int]) -> Curve:
    curve = Curve(0)
    for at_ns, own_uj in points:
        curve.add(Reading(at_ns, own_uj, 2 * own_uj))
    return curve


def test_energy_is_linear_between_change_points_and_floored() -> None:
    curve = drawn((0, 0), (3, 10))
    assert [curve.at(at).own_uj for at in range(4)] == [0, 3, 6, 10]
    assert curve.at(1) == Totals(3, 6)


def test_energy_is_unknown_outside_of_the_change_points() -> None:
    curve = drawn((10, 0), (20, 5))
    for outside in (9, 21):
        with pytest.raises(ValueError, match="outside"):
            curve.at(outside)


def test_a_level_stretch_keeps_two_points() -> None:
    curve = drawn((0, 7), (1, 7), (2, 7), (5, 7), (6, 9))
    assert len(curve._at_ns) == 3
    assert (curve.at(5).own_uj, curve.at(6).own_uj) == (7, 9)


def test_what_is_forgotten_leaves_later_energy_as_it_was() -> None:
    curve = drawn((0, 0), (10, 100), (20, 150), (30, 400))
    before = [curve.at(at) for at in range(15, 31)]
    curve.forget_before(15)
    assert curve.start_ns == 10
    assert [curve.at(at) for at in range(15, 31)] == before


def test_memory_is_bounded_and_the_ends_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "KNOTS_MAX", 16)
    curve = Curve(0)
    for at in range(1000):
        curve.add(Reading(at, at * at, 0))
    assert len(curve._at_ns) <= 16
    assert curve.at(0).own_uj == 0
    assert curve.at(999).own_uj == 999 * 999
    readings = [curve.at(at).own_uj for at in range(1000)]
    assert readings == sorted(readings)


def test_thinning_moves_nothing_that_was_accounted_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "KNOTS_MAX", 16)
    curve = Curve(0)
    for at in range(0, 160, 10):
        curve.add(Reading(at, at * at, 0))
    curve.forget_before(25)
    before = curve.at(25)
    for at in range(160, 900, 10):
        curve.add(Reading(at, at * at, 0))
    assert curve.at(25) == before
