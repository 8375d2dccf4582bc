"""Arms taking turns on the same prompts in one run, and what that says of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from engine.bench.records import Ask, Run, Workload
from engine.bench.statistics import Figures, agreement, figures, of_category, prefill_rate, ratio

WARMTH_TOKENS = 16


class Engine(Protocol):
    """What the comparison asks of an arm's process."""

    def run(self, workload: Workload) -> Run:
        """Do a workload."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of decoding; several may share an engine."""

    name: str
    engine: Engine
    variant: str = ""
    own: bool = False  # ours: must say the same tokens as our first arm
    concurrency_max: int | None = None  # null: no limit

    def takes(self, cell: Cell) -> bool:
        """Return whether the arm can do a cell's workload."""
        return self.concurrency_max is None or cell.concurrency <= self.concurrency_max


@dataclass(frozen=True, slots=True)
class Cell:
    """What is run as one workload: the prompts of a category, or a mixture of all."""

    concurrency: int
    category: str | None  # null: mixed
    asks: tuple[Ask, ...]


@dataclass(slots=True)
class Played:
    """Everything that was run: `runs[arm][cell index][round]`."""

    arms: Sequence[Arm]
    cells: Sequence[Cell]
    runs: dict[str, list[list[Run]]] = field(default_factory=dict)

    def rounds(self, arm: str, cells: Sequence[int]) -> list[list[Run]]:
        """Return an arm's runs of some cells, round by round."""
        return [list(runs) for runs in zip(*(self.runs[arm][cell] for cell in cells), strict=True)]


class Comparison(msgspec.Struct, frozen=True):
    """What came out. `ratios` are of decode tokens/s, ours to theirs, by arm and concurrency."""

    ratios: dict[str, dict[str, float]]
    prefill_ratios: dict[str, dict[str, float]]
    ratios_by_category: dict[str, dict[str, dict[str, float]]]  # arm, concurrency, category
    agreement: dict[str, float]  # of peers with us, of greedy answers: see `statistics.agreement`
    identical: bool  # whether all arms of ours said the same tokens
    rounds: int
    results: tuple[Figures, ...]


def cells_of(
    asks: Sequence[Ask], concurrencies: Sequence[int], by_category: Sequence[int], waves: int = 1
) -> list[Cell]:
    """Lay out the workloads: one per category at the concurrencies `by_category`, else a mixture.

    A mixture takes from each category in turn, `waves` prompts for each place of the batch. Too few
    are repeated under new ids.
    """
    groups: dict[str, list[Ask]] = {}
    for ask in asks:
        groups.setdefault(ask.category, []).append(ask)
    cells = []
    for concurrency in concurrencies:
        if concurrency in by_category or len(groups) == 1:
            cells += [
                Cell(concurrency, category, _enough(group, waves * concurrency))
                for category, group in groups.items()
            ]
        else:
            longest = max(map(len, groups.values()))
            mixed = [
                group[index]
                for index in range(longest)
                for group in groups.values()
                if index < len(group)
            ]
            least = waves * concurrency
            cells.append(Cell(concurrency, None, _enough(mixed, least)[:least]))
    return cells


def play(
    arms: Sequence[Arm],
    cells: Sequence[Cell],
    *,
    rounds: int,
    max_tokens: int,
    temperature: float,
    seed: int,
    within_s: float | None = None,
    progress: Callable[[str, Cell, int, Run], None] = lambda *_: None,
) -> Played:
    """Run every cell on every arm in each round, beginning with another arm each time.

    Before the first round each arm answers one prompt, so that nobody pays for first touches. No
    round but the first begins after `within_s`.
    """
    began = time.monotonic()
    warmth = Workload(cells[0].asks[:1], 1, min(max_tokens, WARMTH_TOKENS), temperature, seed)
    for arm in arms:
        arm.engine.run(msgspec.structs.replace(warmth, variant=arm.variant))
    played = Played(arms, cells, {arm.name: [[] for _ in cells] for arm in arms})
    for number in range(rounds):
        if number and within_s is not None and time.monotonic() - began >= within_s:
            break
        for index, cell in enumerate(cells):
            turns = [arms[(number + index + turn) % len(arms)] for turn in range(len(arms))]
            for arm in turns:
                if not arm.takes(cell):
                    continue
                workload = Workload(
                    cell.asks,
                    cell.concurrency,
                    max_tokens,
                    temperature,
                    seed,
                    arm.variant,
                    sustained=len(cell.asks) > cell.concurrency,
                )
                run = arm.engine.run(workload)
                played.runs[arm.name][index].append(run)
                progress(arm.name, cell, number, run)
    return played


def compared(played: Played, *, greedy: bool) -> Comparison:
    """Summarise what was run; the first arm is the one that the others are measured against."""
    ours, *others = played.arms
    results: list[Figures] = []
    ratios: dict[str, dict[str, float]] = {arm.name: {} for arm in others}
    prefill: dict[str, dict[str, float]] = {arm.name: {} for arm in others}
    by_category: dict[str, dict[str, dict[str, float]]] = {arm.name: {} for arm in others}
    for concurrency in dict.fromkeys(cell.concurrency for cell in played.cells):
        found = [i for i, cell in enumerate(played.cells) if cell.concurrency == concurrency]
        for arm in played.arms:
            if not arm.takes(played.cells[found[0]]):
                continue
            results += _figures(played, arm, concurrency, found)
            if arm is ours:
                continue
            own, their = played.rounds(ours.name, found), played.rounds(arm.name, found)
            if (overall := ratio(own, their)) is not None:
                ratios[arm.name][str(concurrency)] = overall
            if (overall := ratio(own, their, prefill_rate)) is not None:
                prefill[arm.name][str(concurrency)] = overall
            for index in found:
                category = played.cells[index].category
                single = ratio(played.rounds(ours.name, [index]), played.rounds(arm.name, [index]))
                if category is not None and single is not None:
                    of_arm = by_category[arm.name].setdefault(str(concurrency), {})
                    of_arm[category] = single
    return Comparison(
        ratios=ratios,
        prefill_ratios=prefill,
        ratios_by_category=by_category,
        agreement=_agreements(played) if greedy else {},
        identical=_identical(played),
        rounds=len(played.runs[ours.name][0]),
        results=tuple(results),
    )


def _figures(played: Played, arm: Arm, concurrency: int, found: list[int]) -> list[Figures]:
    """Return an arm's figures at one concurrency: over all, then by category."""
    rounds = played.rounds(arm.name, found)
    results = [figures(arm.name, concurrency, None, rounds, alone=True)]
    categories = dict.fromkeys(ask.category for index in found for ask in played.cells[index].asks)
    for category in categories:
        own = [index for index in found if played.cells[index].category == category]
        if own:
            of_own = played.rounds(arm.name, own)
            results.append(figures(arm.name, concurrency, category, of_own, alone=True))
        elif len(categories) > 1:
            names = frozenset(
                ask.id for i in found for ask in played.cells[i].asks if ask.category == category
            )
            only = of_category(rounds, names)
            results.append(figures(arm.name, concurrency, category, only, alone=False))
    return results


def _agreements(played: Played) -> dict[str, float]:
    """Compare the answers of the first round at the first concurrency that an arm takes."""
    ours = played.arms[0]
    found: dict[str, float] = {}
    for arm in played.arms:
        taken = [cell.concurrency for cell in played.cells if arm.takes(cell)]
        if arm.own or not taken:
            continue
        cells = [i for i, cell in enumerate(played.cells) if cell.concurrency == taken[0]]
        share = agreement(
            [played.runs[ours.name][index][0] for index in cells],
            [played.runs[arm.name][index][0] for index in cells],
        )
        if share is not None:
            found[arm.name] = share
    return found


def _identical(played: Played) -> bool:
    own = [arm.name for arm in played.arms if arm.own]
    for index in range(len(played.cells)):
        said = {
            tuple(answer.token_ids for answer in run.answers)
            for name in own
            for run in played.runs[name][index]
        }
        if len(said) > 1:
            return False
    return True


def _enough(asks: Sequence[Ask], count: int) -> tuple[Ask, ...]:
    """Return at least `count` prompts, the same ones again under new ids if need be."""
    repeats = -(-count // len(asks))
    return tuple(
        ask if turn == 0 else msgspec.structs.replace(ask, id=f"{ask.id}#{turn + 1}")
        for turn in range(max(1, repeats))
        for ask in asks
    )
