"""Energy is conserved: requests + idle + overhead + external + unattributed == meter, always.

For any schedule of steps, requests that end and time that passes, any policy of attribution, one
device or a group, and any counters: coarse or read at will, level, lost, reset, of another origin,
stuck, or leaping by more than a device can draw.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from metering_cases import ScriptedSource, scripted_meter
from structlog.testing import capture_logs

from engine.records import Work
from metering.energy import Claim, PendingStep, Policy, StepCosts, WindowCloser, track
from metering.energy.attribution import (
    OVERHEAD,
    AffineShapley,
    TimeWeighted,
    TokenWeighted,
    apportion,
    split,
)
from metering.energy.protocols import Reading

NAMES = ("a", "b", "c")
COSTS = st.builds(
    StepCosts,
    fixed=st.integers(0, 10**6),
    prefill_token=st.integers(0, 10**4),
    verified_node=st.integers(0, 10**4),
    kv_read=st.integers(0, 10),
)
POLICIES = st.one_of(
    st.builds(AffineShapley, COSTS), st.just(TokenWeighted()), st.just(TimeWeighted())
)
WORKS = st.builds(
    Work,
    prefill_tokens=st.integers(0, 50),
    recomputed_tokens=st.integers(0, 50),
    verified_nodes=st.integers(0, 8),
    kv_read_tokens=st.integers(0, 5000),
)
CLAIMS = st.dictionaries(st.sampled_from(NAMES), st.tuples(WORKS, st.booleans())).map(
    lambda parts: [Claim(name, work, charged, 0) for name, (work, charged) in parts.items()]
)


@contextmanager
def short_patience() -> Iterator[None]:
    """Times here are a few nanoseconds: a counter is stuck, and a leap impossible, after few."""
    with (
        mock.patch.multiple(track, STUCK_NS=40, STUCK_PERIODS=0, JUMP_SLACK_NS=5),
        capture_logs(),
    ):
        yield


@given(st.integers(0, 10**15), CLAIMS, POLICIES)
def test_a_step_is_split_exactly(energy_uj: int, claims: list[Claim], policy: Policy) -> None:
    shares = split(energy_uj, claims, policy)
    assert sum(shares.values()) == energy_uj
    assert min(shares.values()) >= 0
    assert split(energy_uj, claims[::-1], policy) == shares
    for claim in claims:
        work = claim.work
        useful = work.prefill_tokens + work.verified_nodes + work.kv_read_tokens
        if not claim.charged or not useful:
            assert shares.get(claim.request_id, 0) == 0


@given(st.integers(0, 10**15), WORKS, st.booleans(), POLICIES)
def test_who_is_alone_in_a_step_gets_what_it_would_beside_one_that_did_nothing(
    energy_uj: int, work: Work, charged: bool, policy: Policy
) -> None:
    alone = Claim("a", work, charged, 0)
    beside = split(energy_uj, [alone, Claim("b", Work(), charged=True, through_block=0)], policy)
    shares = split(energy_uj, [alone], policy)
    assert {name: share for name, share in shares.items() if share} == {
        name: share for name, share in beside.items() if share
    }


@given(
    st.integers(0, 10**18),
    st.dictionaries(st.sampled_from([*NAMES, OVERHEAD]), st.integers(0, 10**18)),
)
def test_apportioned_shares_are_within_one_of_their_quota(
    total: int, weights: Mapping[str, int]
) -> None:
    shares = apportion(total, weights)
    assert sum(shares.values()) == total
    weight = sum(weights.values())
    if weight:
        for name, share in shares.items():
            assert abs(share * weight - total * weights[name]) < weight


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 90), st.integers(0, 9)), min_size=2),
    st.lists(st.integers(0, 400), min_size=2).map(sorted),
    st.integers(1, 2),
    st.integers(0, 12),
)
def test_stretches_that_adjoin_are_had_at_once_as_each_by_itself(
    moves: list[tuple[int, int, int]], at_ns: list[int], devices: int, reset_at: int
) -> None:
    """On one curve, on several, and outside of all."""
    sources = [ScriptedSource(device=f"GPU-{index}") for index in range(devices)]
    meter = scripted_meter(*sources)
    now, own, external = 0, 0, 0
    with short_patience():
        for index, (wait, more, others) in enumerate(moves):
            now, own, external = now + wait, own + more, external + others
            for source in sources:
                source.reading = Reading(now, own, external, origin=index >= reset_at)
            meter.sample()
    assert meter.along(at_ns) == [meter.segments(*stretch) for stretch in pairwise(at_ns)]


# What may happen next. Steps and readings move time on by themselves.
DEVICES = st.integers(0, 1)
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 30), st.integers(0, 30), CLAIMS),
        st.tuples(
            st.just("read"), DEVICES, st.integers(1, 20), st.integers(0, 90), st.integers(0, 30)
        ),
        st.tuples(st.just("reset"), DEVICES, st.integers(1, 20), st.integers(0, 50)),
        st.tuples(st.just("reload"), DEVICES, st.integers(1, 20), st.integers(0, 50)),
        st.tuples(st.just("leap"), DEVICES, st.integers(1, 20)),
        st.tuples(st.just("lose"), DEVICES, st.integers(1, 20)),
        st.tuples(st.just("stand"), DEVICES, st.integers(1, 60)),
        st.tuples(st.just("end"), st.sampled_from(NAMES)),
        st.tuples(st.just("idle")),
        st.tuples(st.just("write")),
    ),
    max_size=40,
)
LEAP_UJ = 10**7


class Ledger:
    """Plays happenings on a window closer, and keeps what was handed out to be written."""

    def __init__(self, policy: Policy, *, devices: int, at_will: bool) -> None:
        self.sources = [
            ScriptedSource(at_will=at_will, device=f"GPU-{index}", power_max_w=10.0**5)
            for index in range(devices)
        ]
        self.meter = scripted_meter(*self.sources, policy=policy)
        self.witness = scripted_meter(*self.sources)  # it hears the same, and forgets nothing
        self.closer = WindowCloser(self.meter, policy)
        self.now_ns = 0
        self.totals = [Reading(0, 0, 0)] * devices
        self.ended: set[str] = set()
        self.parts: Counter[str] = Counter()
        self.shares: Counter[str] = Counter()
        self.late: Counter[str] = Counter()

    def play(self, happening: tuple[object, ...]) -> None:
        match happening:
            case ("step", int(wait), int(length), list(claims)):
                start_ns = self.now_ns + wait
                self.now_ns = start_ns + length
                self.closer.add(PendingStep(start_ns, self.now_ns, claims))
            case ("read", int(device), int(wait), int(own), int(external)):
                self._read(device, wait, own, external)
            case ("stand", int(device), int(wait)):
                self._read(device, wait, 0, 0)
            case ("leap", int(device), int(wait)):
                self._read(device, wait, LEAP_UJ, 0)
            case ("reset", int(device), int(wait), int(own)):
                self._begin(device, self._total(device).origin)
                self._read(device, wait, own, 0)
            case ("reload", int(device), int(wait), int(own)):
                before = self._total(device)
                self._begin(device, before.origin + 1)
                self._read(device, wait, before.own_uj + own, before.external_uj)
            case ("lose", int(device), int(wait)):
                self.now_ns += wait
                self.sources[device % len(self.sources)].reading = None
                self._sample()
            case ("end", str(name)):
                self.write()
                self.ended.add(name)
            case ("idle",):
                self.closer.close_idle(self.now_ns)
            case ("write",):
                self.write()
        self.closer.settle(lambda name: name not in self.ended)

    def write(self) -> None:
        unwritten = self.closer.unwritten
        for window in unwritten.windows:
            assert window.end_ns > window.start_ns
            for part in ("requests", "idle", "overhead", "external", "unattributed"):
                amount = getattr(window, f"{part}_uj")
                assert amount >= 0
                self.parts[part] += amount
            self.parts["meter"] += window.meter_uj
        for name, share in unwritten.shares.items():
            assert name not in self.ended or not share.energy_uj, "it came too late"
            self.shares[name] += share.energy_uj
        for name, late_uj in unwritten.late_uj.items():
            assert name in self.ended
            self.late[name] += late_uj
        self.closer.written()

    def metered_uj(self) -> int:
        """What the meter moved by, told by one that looks back over all of it at once."""
        if len(self.sources) > 1:
            segments = self.witness.segments(-1, 2**62)
            return sum(segment.own_uj + segment.external_uj for segment in segments)
        curves = [curve for curve in self.witness._tracks[0].curves if not curve.is_empty]
        return sum(sum(curve.at(curve.end_ns)) - sum(curve.at(curve.start_ns)) for curve in curves)

    def _total(self, device: int) -> Reading:
        return self.totals[device % len(self.sources)]

    def _begin(self, device: int, origin: int) -> None:
        self.totals[device % len(self.sources)] = Reading(0, 0, 0, origin)

    def _read(self, device: int, wait: int, own: int, external: int) -> None:
        self.now_ns += wait
        before = self._total(device)
        reading = Reading(
            self.now_ns, before.own_uj + own, before.external_uj + external, before.origin
        )
        place = device % len(self.sources)
        self.totals[place] = self.sources[place].reading = reading
        self._sample()

    def _sample(self) -> None:
        self.meter.sample()
        self.witness.sample()


@settings(max_examples=1000)
@given(HAPPENINGS, POLICIES, st.integers(1, 2), st.booleans())
def test_whatever_happens_the_parts_sum_to_the_meter(
    happenings: list[tuple[object, ...]], policy: Policy, devices: int, at_will: bool
) -> None:
    ledger = Ledger(policy, devices=devices, at_will=at_will)
    with short_patience():
        for happening in happenings:
            ledger.play(happening)
        # Last change points behind everything, so that all of it settles.
        for device in (0, 1, 0, 1):
            ledger.play(("read", device, 1, 1, 0))
        ledger.play(("idle",))
        ledger.write()
    assert ledger.parts["meter"] == ledger.metered_uj()
    assert ledger.parts["meter"] < LEAP_UJ, "what no device can draw was believed"
    assert ledger.parts["requests"] == sum(ledger.shares.values())
    assert sum(ledger.late.values()) <= ledger.parts["unattributed"]
