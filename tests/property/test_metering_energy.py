"""Energy is conserved: requests + idle + overhead + external + unattributed == meter, always.

For any schedule of steps, requests that end and time that passes, and any counter: coarse or read
at will, level, lost, reset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from metering_cases import ScriptedSource, scripted_meter

from engine.records import Work
from metering.energy import Claim, PendingStep, StepCosts, WindowCloser
from metering.energy.attribution import OVERHEAD, apportion, split
from metering.energy.protocols import Reading

NAMES = ("a", "b", "c")
COSTS = st.builds(
    StepCosts,
    fixed=st.integers(0, 10**6),
    prefill_token=st.integers(0, 10**4),
    verified_node=st.integers(0, 10**4),
    kv_read=st.integers(0, 10),
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


@given(st.integers(0, 10**15), CLAIMS, COSTS)
def test_a_step_is_split_exactly(energy_uj: int, claims: list[Claim], costs: StepCosts) -> None:
    shares = split(energy_uj, claims, costs)
    assert sum(shares.values()) == energy_uj
    assert min(shares.values()) >= 0
    assert split(energy_uj, claims[::-1], costs) == shares
    for claim in claims:
        if not claim.charged or not costs.own(claim.work):
            assert shares.get(claim.request_id, 0) == 0


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


# What may happen next. Steps and readings move time on by themselves.
HAPPENINGS = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(0, 30), st.integers(0, 30), CLAIMS),
        st.tuples(st.just("read"), st.integers(1, 20), st.integers(0, 90), st.integers(0, 30)),
        st.tuples(st.just("reset"), st.integers(1, 20), st.integers(0, 50)),
        st.tuples(st.just("lose"), st.integers(1, 20)),
        st.tuples(st.just("end"), st.sampled_from(NAMES)),
        st.tuples(st.just("idle")),
        st.tuples(st.just("write")),
    ),
    max_size=40,
)


class Ledger:
    """Plays happenings on a window closer, and keeps what was handed out to be written."""

    def __init__(self, costs: StepCosts, *, at_will: bool) -> None:
        self.source = ScriptedSource(at_will=at_will)
        self.meter = scripted_meter(self.source)
        self.closer = WindowCloser(self.meter, costs)
        self.now_ns = 0
        self.own_uj = self.external_uj = 0
        self.ended: set[str] = set()
        self.parts: Counter[str] = Counter()
        self.shares: Counter[str] = Counter()
        self.late: set[str] = set()
        self.metered: dict[str, tuple[int, int]] = {}  # first and last total of each epoch

    def play(self, happening: tuple[object, ...]) -> None:
        match happening:
            case ("step", int(wait), int(length), list(claims)):
                start_ns = self.now_ns + wait
                self.now_ns = start_ns + length
                self.closer.add(PendingStep(start_ns, self.now_ns, claims))
            case ("read", int(wait), int(own), int(external)):
                self._read(wait, own, external)
            case ("reset", int(wait), int(own)):
                self.own_uj = self.external_uj = 0
                self._read(wait, own, 0)
            case ("lose", int(wait)):
                self.now_ns += wait
                self.source.reading = None
                self.meter.sample()
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
            if name in self.ended and share.energy_uj:
                self.late.add(name)
            self.shares[name] += share.energy_uj
        self.closer.written()

    def _read(self, wait: int, own: int, external: int) -> None:
        self.now_ns += wait
        self.own_uj += own
        self.external_uj += external
        self.source.reading = Reading(self.now_ns, self.own_uj, self.external_uj)
        self.meter.sample()
        for curve in self.meter._curves:
            if not curve.is_empty:
                last = curve.at(curve.end_ns)
                first, _ = self.metered.setdefault(curve.epoch, (sum(last), sum(last)))
                self.metered[curve.epoch] = (first, sum(last))


@given(HAPPENINGS, COSTS, st.booleans())
def test_whatever_happens_the_parts_sum_to_the_meter(
    happenings: list[tuple[object, ...]], costs: StepCosts, at_will: bool
) -> None:
    ledger = Ledger(costs, at_will=at_will)
    for happening in happenings:
        ledger.play(happening)
    # A last change point behind everything, so that all of it settles.
    ledger.play(("read", 1, 1, 0))
    ledger.play(("read", 1, 1, 0))
    ledger.play(("idle",))
    ledger.write()
    metered_uj = sum(last - first for first, last in ledger.metered.values())
    assert ledger.parts["meter"] == metered_uj
    assert ledger.parts["requests"] == sum(ledger.shares.values())
    assert not ledger.late, "energy that came too late reached a request that had ended"
