"""Closing windows: steps, the time between them, what comes late, and what is never known."""

from __future__ import annotations

from metering_cases import ScriptedSource, scripted_meter

from engine.records import Work
from metering.energy import Claim, EnergyMeter, PendingStep, StepCosts, WindowCloser
from metering.energy import windows as window_module
from metering.energy.attribution import AffineShapley
from metering.energy.protocols import Reading

POLICY = AffineShapley(StepCosts(fixed=0, prefill_token=1, verified_node=1, kv_read=0))


class Bench:
    """A window closer on a counter of one microjoule per nanosecond."""

    def __init__(self) -> None:
        self.source = ScriptedSource()
        self.meter: EnergyMeter = scripted_meter(self.source)
        self.closer = WindowCloser(self.meter, POLICY)
        self.ended: set[str] = set()
        self.at(0)

    def at(self, at_ns: int, own_uj: int | None = None, external_uj: int = 0) -> None:
        own_uj = at_ns if own_uj is None else own_uj
        self.source.reading = Reading(at_ns, own_uj, external_uj)
        self.meter.sample()

    def step(self, start_ns: int, end_ns: int, *names: str, charged: bool = True) -> None:
        claims = [Claim(name, Work(verified_nodes=1), charged, 4) for name in names]
        self.closer.add(PendingStep(start_ns, end_ns, claims))

    def settle(self) -> None:
        self.closer.settle(lambda name: name not in self.ended)

    def parts(self) -> dict[str, int]:
        names = ("requests", "idle", "overhead", "external", "unattributed", "meter")
        windows = self.closer.unwritten.windows
        return {
            name: total
            for name in names
            if (total := sum(getattr(window, f"{name}_uj") for window in windows))
        }

    def shares(self) -> dict[str, tuple[int, bool]]:
        shares = self.closer.unwritten.shares
        return {name: (share.energy_uj, share.is_partial) for name, share in shares.items()}


def test_steps_and_the_time_between_them_make_up_the_meter() -> None:
    bench = Bench()
    bench.step(10, 30, "a", "b")
    bench.step(35, 45, "a")
    bench.at(50)
    bench.settle()
    assert bench.parts() == {"requests": 30, "idle": 15, "meter": 45}
    assert bench.shares() == {"a": (20, False), "b": (10, False)}
    [window] = bench.closer.unwritten.windows
    assert (window.start_ns, window.end_ns) == (0, 45)
    assert bench.closer.unwritten.shares["a"].through_block == 4


def test_a_step_waits_for_a_change_point_behind_it() -> None:
    bench = Bench()
    bench.step(10, 30, "a")
    bench.at(29)
    bench.settle()
    assert bench.shares() == {}
    assert bench.closer.settled_until_ns == -1
    bench.at(30)
    bench.settle()
    assert bench.shares() == {"a": (20, False)}
    assert bench.closer.settled_until_ns == 30


def test_what_is_written_is_not_handed_out_again() -> None:
    bench = Bench()
    bench.step(0, 10, "a")
    bench.at(10)
    bench.settle()
    bench.closer.written()
    bench.step(10, 15, "a")
    bench.at(20)
    bench.settle()
    assert bench.shares() == {"a": (5, False)}
    assert bench.parts() == {"requests": 5, "meter": 5}


def test_energy_of_a_request_that_has_ended_is_unattributed() -> None:
    bench = Bench()
    bench.step(0, 10, "a", "b")
    bench.ended.add("a")
    bench.at(10)
    bench.settle()
    assert bench.parts() == {"requests": 5, "unattributed": 5, "meter": 10}
    assert bench.shares() == {"b": (5, False)}
    assert bench.closer.unwritten.late_uj == {"a": 5}


def test_work_that_is_not_charged_is_overhead() -> None:
    bench = Bench()
    bench.step(0, 10, "a", charged=False)
    bench.at(10)
    bench.settle()
    assert bench.parts() == {"overhead": 10, "meter": 10}
    assert bench.shares() == {}


def test_a_step_across_a_reset_is_never_known_and_its_energy_unattributed() -> None:
    bench = Bench()
    bench.step(0, 10, "before")
    bench.step(10, 30, "across")
    bench.step(30, 40, "after")
    bench.at(10)
    bench.at(20)
    bench.at(25, own_uj=0)
    bench.at(40, own_uj=15)
    bench.settle()
    assert bench.shares() == {"before": (10, False), "across": (0, True), "after": (10, False)}
    assert bench.parts() == {"requests": 20, "unattributed": 15, "meter": 35}
    first, second = bench.closer.unwritten.windows
    assert first.epoch != second.epoch
    assert (first.start_ns, first.end_ns, second.start_ns, second.end_ns) == (0, 20, 25, 40)


def test_a_step_before_the_first_reading_is_never_known() -> None:
    source = ScriptedSource()
    closer = WindowCloser(scripted_meter(source), POLICY)
    closer.add(PendingStep(0, 10, [Claim("a", Work(verified_nodes=1), True, 0)]))
    source.reading = Reading(20, 0, 0)
    closer._meter.sample()
    closer.settle(lambda _: True)
    assert closer.unwritten.shares["a"].is_partial
    assert closer.unwritten.windows == []


def test_energy_known_before_the_loss_stays_in_the_books() -> None:
    """Its window is accounted for, so the sum over requests must still find it."""
    bench = Bench()
    bench.step(0, 10, "a")
    bench.step(10, 30, "a")
    bench.at(20)
    bench.at(30, own_uj=0)
    bench.settle()
    assert bench.shares() == {"a": (10, True)}
    assert bench.parts()["requests"] == 10


def test_other_processes_energy_is_external() -> None:
    bench = Bench()
    bench.step(0, 10, "a")
    bench.at(20, own_uj=20, external_uj=40)
    bench.settle()
    bench.closer.close_idle(20)
    assert bench.parts() == {"requests": 10, "idle": 10, "external": 40, "meter": 60}


def test_idle_time_is_closed_up_to_the_last_change_point() -> None:
    bench = Bench()
    bench.at(8)
    bench.closer.close_idle(100)
    assert bench.parts() == {"idle": 8, "meter": 8}


def test_idle_time_is_not_closed_while_a_step_is_pending() -> None:
    bench = Bench()
    bench.step(2, 20, "a")
    bench.at(8)
    bench.closer.close_idle(8)
    assert bench.parts() == {}


def test_a_step_that_turns_up_in_time_closed_as_idle_is_not_known() -> None:
    bench = Bench()
    bench.at(10)
    bench.closer.close_idle(10)
    bench.step(5, 20, "a")
    bench.at(20)
    bench.settle()
    assert bench.shares() == {"a": (0, True)}
    assert bench.parts() == {"idle": 10, "unattributed": 10, "meter": 20}


def test_overlapping_steps_are_never_counted_twice() -> None:
    bench = Bench()
    bench.step(0, 12, "a")
    bench.step(10, 20, "b")
    bench.at(20)
    bench.settle()
    assert bench.parts() == {"requests": 20, "meter": 20}
    assert bench.shares() == {"a": (12, False), "b": (8, False)}


def test_a_step_of_no_time_took_nothing_and_is_known() -> None:
    bench = Bench()
    bench.step(0, 0, "a")
    bench.step(10, 10, "b")
    bench.at(10)
    bench.settle()
    assert bench.shares() == {"a": (0, False), "b": (0, False)}
    assert bench.parts() == {"idle": 10, "meter": 10}


def test_steps_that_never_settle_are_given_up_and_their_time_is_not_idle(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(window_module, "PENDING_STEPS_MAX", 2)
    bench = Bench()
    bench.step(0, 10, "a")
    bench.step(10, 20, "b")
    bench.step(20, 30, "c")
    assert bench.shares() == {"a": (0, True)}
    bench.at(30)
    bench.settle()
    assert bench.parts() == {"requests": 20, "unattributed": 10, "meter": 30}
