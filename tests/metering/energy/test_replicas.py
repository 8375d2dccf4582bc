"""The choice among replicas: figures that mean what they say, and no comparison that doesn't."""

from __future__ import annotations

from decimal import Decimal
from random import Random

import msgspec
from billing_cases import energy
from hypothesis import given
from hypothesis import strategies as st

from metering.energy.replicas import (
    JOINED_WITHIN,
    SAMPLES_MIN,
    Basis,
    Candidate,
    Choice,
    Efficiency,
    Figure,
    Reason,
    by_choice,
    green,
    least_loaded,
    shown,
)
from metering.events import EnergyClass

BOARD = Basis(EnergyClass.MEASURED, "nvml_total_energy", "gpu_board")
MODULE = BOARD._replace(scope="gpu_module")
ESTIMATE = Basis(EnergyClass.ESTIMATED, "cpu_time", "process")

requests = st.tuples(st.integers(0, 10**9), st.integers(1, 4096))
figures = st.builds(
    Figure,
    st.sampled_from([BOARD, MODULE, ESTIMATE]),
    st.integers(1, 2 * SAMPLES_MIN),
    st.floats(0, 10**7) | st.sampled_from([1000.0, 1200.0]),
)
fleets = st.lists(
    st.builds(
        Candidate,
        st.sampled_from("abcdef"),
        st.integers(0, 5),
        st.integers(1, 4),
        st.none() | figures,
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda each: each.replica,
)


def candidate(
    name: str,
    uj_per_token: float | None,
    *,
    live: int = 0,
    samples: int = SAMPLES_MIN,
    basis: Basis = BOARD,
) -> Candidate:
    known = uj_per_token is not None
    return Candidate(name, live, 4, Figure(basis, samples, uj_per_token) if known else None)


def decided(*candidates: Candidate) -> tuple[str, Reason]:
    return green(candidates)[:2]


@given(st.lists(requests, min_size=1, max_size=60))
def test_a_figure_lies_between_the_least_and_the_most_that_a_request_took(
    taken: list[tuple[int, int]],
) -> None:
    efficiency = Efficiency()
    for uj, tokens in taken:
        efficiency.note(energy("measured", uj), tokens)
    figure = efficiency.figure
    assert figure is not None
    assert figure.samples == len(taken)
    per_token = [uj / tokens for uj, tokens in taken]
    assert min(per_token) * (1 - 1e-9) <= figure.uj_per_token <= max(per_token) * (1 + 1e-9)


@given(st.lists(requests, max_size=20), requests)
def test_a_figure_follows_what_requests_take_now(
    before: list[tuple[int, int]], now: tuple[int, int]
) -> None:
    efficiency = Efficiency()
    for uj, tokens in (*before, *[now] * 200):
        efficiency.note(energy("measured", uj), tokens)
    figure = efficiency.figure
    assert figure is not None
    assert abs(figure.uj_per_token - now[0] / now[1]) <= 1 + figure.uj_per_token / 1000


def test_what_says_nothing_is_not_counted_and_nothing_is_averaged_across_kinds() -> None:
    efficiency = Efficiency()
    efficiency.note(energy("unavailable", None), 10)
    efficiency.note(energy("measured", 10**6), 0)
    assert efficiency.figure is None
    for _ in range(20):
        efficiency.note(energy("measured", 10**6), 10)
    efficiency.note(energy("estimated", 500), 10)
    figure = efficiency.figure
    assert figure is not None
    assert (figure.basis.energy_class, figure.samples) == (EnergyClass.ESTIMATED, 1)
    assert figure.uj_per_token == 50


@given(fleets, st.randoms())
def test_only_figures_of_one_kind_on_enough_requests_decide(
    fleet: list[Candidate], chance: Random
) -> None:
    choice = green(fleet)
    again = list(fleet)
    chance.shuffle(again)
    assert green(again) == choice, "the order of the replicas decides nothing"
    by_name = {each.replica: each for each in fleet}
    chosen = by_name[choice.replica]
    compared = [by_name[name].figure for name in choice.compared]
    assert len({figure.basis for figure in compared if figure}) <= 1
    assert all(figure and figure.samples >= SAMPLES_MIN for figure in compared)
    assert choice.reason.is_choice == (len(compared) > 1)
    if not choice.reason.is_choice:
        assert chosen == least_loaded(fleet)
        assert (choice.reason is Reason.ONLY_ONE) == (len(fleet) == 1)
        return
    assert choice.replica in choice.compared
    lowest = min(figure.uj_per_token for figure in compared if figure)
    assert chosen.figure
    room = [by_name[name] for name in choice.compared if by_name[name].has_room]
    assert chosen.has_room or not room
    if choice.reason is Reason.LOWEST:
        assert chosen.figure.uj_per_token == lowest
    best = min((each.figure.uj_per_token for each in room if each.figure), default=lowest)
    assert chosen.figure.uj_per_token <= JOINED_WITHIN * best
    if choice.reason is Reason.RUNNING_BATCH:
        assert chosen.live > 0


def test_the_lowest_is_chosen_a_near_batch_joined_and_a_full_one_passed_over() -> None:
    idle, near, far = candidate("a", 1000), candidate("b", 1200, live=1), candidate("c", 1300)
    assert decided(idle, candidate("b", 1200), far) == ("a", Reason.LOWEST)
    assert decided(idle, near, far) == ("b", Reason.RUNNING_BATCH)
    assert decided(candidate("a", 1000, live=2), near, far) == ("a", Reason.LOWEST)
    assert decided(idle, candidate("b", 1300, live=1)) == ("a", Reason.LOWEST)
    assert decided(candidate("a", 1000, live=4), far) == ("c", Reason.LOWEST_WITH_ROOM)
    assert decided(candidate("a", 1000, live=4), near._replace(live=9)) == ("a", Reason.LOWEST)
    assert decided(candidate("b", 1000), candidate("a", 1000)) == ("a", Reason.LOWEST)
    full = candidate("a", 1000, live=4)
    assert decided(full, candidate("b", 1000)) == ("b", Reason.LOWEST), "none was below it"
    assert decided(full, candidate("b", 1000, live=1)) == ("b", Reason.LOWEST)


def test_where_nothing_can_be_compared_it_says_why_and_the_load_decides() -> None:
    assert decided(candidate("a", 1000, live=3)) == ("a", Reason.ONLY_ONE)
    few = candidate("b", 10, samples=SAMPLES_MIN - 1)
    assert decided(candidate("a", 1000, live=1), few) == ("b", Reason.TOO_FEW)
    assert decided(candidate("a", 1000), candidate("b", None)) == ("b", Reason.TOO_FEW)
    module = candidate("b", 10, live=1, basis=MODULE)
    assert decided(candidate("a", 1000), module) == ("a", Reason.NOT_COMPARABLE)
    estimates = [candidate(name, 1, basis=ESTIMATE) for name in "cd"]
    assert decided(candidate("a", 1000), candidate("b", 900), *estimates) == ("b", Reason.LOWEST)


def test_a_choice_is_plain_json_and_is_known_again_by_it() -> None:
    choice = green([candidate("a", 123_456), candidate("b", 0.0), candidate("c", None)])
    stated = msgspec.json.decode(msgspec.json.encode(choice.stated()))
    assert stated == choice.stated()
    assert [each["joules_per_token"] for each in stated["candidates"]] == ["0.12", "0", None]
    assert [each["compared"] for each in stated["candidates"]] == [True, True, False]
    assert by_choice({"green": stated})
    assert not by_choice({"green": Choice("a", Reason.ONLY_ONE, (), ()).stated()})
    assert not by_choice({})


@given(st.floats(1e-3, 1e9))
def test_a_tenant_sees_two_digits_of_a_figure(uj_per_token: float) -> None:
    text = shown(Figure(BOARD, SAMPLES_MIN, uj_per_token))
    assert text is not None
    assert abs(Decimal(text) - Decimal(uj_per_token).scaleb(-6)) <= Decimal(text) / 19
    assert len(text.replace(".", "").strip("0")) <= 2
