"""The cost floor of a step, fitted to measured runs. Pure.

    cost of a step = rate * block_time * (1 + alpha * log2(concurrency))

`block_time` is a step's time for one request alone. At alpha 0 company costs nothing, and each of
`concurrency` requests bears its part of the same step. Least squares of the runs' median step
times over log2(concurrency), each run once; intervals are percentiles of a bootstrap over runs,
since steps of one run resemble each other.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from metering.queries import StepRun

RUNS_MIN = 8
LEVELS_MIN = 2
RESAMPLES = 1000
NS_PER_MS = 1_000_000


@dataclass(frozen=True, slots=True)
class Level:
    """What was measured with so many requests at once."""

    concurrency: int
    runs: int
    steps: int
    step_ms: float  # the median of the runs' medians
    tokens_per_step: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Fit:
    """The model as fitted. `r_squared` is of the runs; null where all took the same time."""

    block_ms: Estimate
    alpha: Estimate
    r_squared: float | None
    runs: int
    concurrency_min: int
    concurrency_max: int

    def step_ms(self, concurrency: int) -> float:
        """A step's time with so many requests."""
        return self.block_ms.value * (1 + self.alpha.value * math.log2(concurrency))

    def covers(self, concurrency: int) -> bool:
        """Whether so many at once were measured; beyond, the model speaks for itself."""
        return self.concurrency_min <= concurrency <= self.concurrency_max


def levels(runs: Sequence[StepRun]) -> list[Level]:
    """The runs by concurrency."""
    grouped: defaultdict[int, list[StepRun]] = defaultdict(list)
    for run in runs:
        grouped[run.concurrency].append(run)
    return [
        Level(
            concurrency=concurrency,
            runs=len(each),
            steps=sum(run.steps for run in each),
            step_ms=median(run.step_ns for run in each) / NS_PER_MS,
            tokens_per_step=sum(run.tokens for run in each) / sum(run.steps for run in each),
        )
        for concurrency, each in sorted(grouped.items())
    ]


def why_not(runs: Sequence[StepRun]) -> str | None:
    """What is missing for a fit, in words; null when there is enough."""
    found = len({run.concurrency for run in runs})
    if len(runs) < RUNS_MIN or found < LEVELS_MIN:
        return (
            f"a fit takes {RUNS_MIN} runs at {LEVELS_MIN} concurrencies; "
            f"on record are {len(runs)} at {found}"
        )
    return None if _line(_points(runs)) else "step times fall to nothing where they should begin"


def fit(runs: Sequence[StepRun]) -> Fit | None:
    """The model of these runs, or null where they do not suffice: see `why_not`."""
    if why_not(runs) is not None:
        return None
    points = _points(runs)
    whole = _line(points)
    assert whole is not None
    chance = random.Random(0)  # noqa: S311 - for resampling; the same data, the same interval
    resampled = [_line(chance.choices(points, k=len(points))) for _ in range(RESAMPLES)]
    lines = [line for line in resampled if line is not None]
    concurrencies = [run.concurrency for run in runs]
    return Fit(
        block_ms=_estimate(whole[0], [block for block, _ in lines]),
        alpha=_estimate(whole[1], [alpha for _, alpha in lines]),
        r_squared=_r_squared(points, whole),
        runs=len(runs),
        concurrency_min=min(concurrencies),
        concurrency_max=max(concurrencies),
    )


Point = tuple[float, float]  # log2(concurrency), milliseconds


def _points(runs: Sequence[StepRun]) -> list[Point]:
    return [(math.log2(run.concurrency), run.step_ns / NS_PER_MS) for run in runs]


def _line(points: Sequence[Point]) -> Point | None:
    """Block time and alpha; null for one concurrency alone, or a block time not above zero."""
    mean_x, mean_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    if not spread:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    block_ms = mean_y - slope * mean_x
    return (block_ms, slope / block_ms) if block_ms > 0 else None


def _estimate(value: float, resampled: Sequence[float]) -> Estimate:
    ordered = sorted(resampled)
    last = len(ordered) - 1
    return Estimate(value, ordered[round(0.025 * last)], ordered[round(0.975 * last)])


def _r_squared(points: Sequence[Point], line: Point) -> float | None:
    mean_y = fmean(y for _, y in points)
    total = sum((y - mean_y) ** 2 for _, y in points)
    if not total:
        return None
    block_ms, alpha = line
    rest = sum((y - block_ms * (1 + alpha * x)) ** 2 for x, y in points)
    return 1 - rest / total
