"""From runs to figures: pooled within a round, then the median of the rounds. Pure.

A rate is the sum of tokens over the sum of times of what is pooled; a ratio is taken round by
round, between runs made next to each other, so that what the machine did meanwhile falls on both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median

import msgspec

from engine.bench.records import Answer, Run
from engine.loop.tally import added
from engine.records import DraftCounters

Rounds = Sequence[Sequence[Run]]  # of one arm: round by round, the runs that are pooled


class Figures(msgspec.Struct, frozen=True):
    """One arm at one concurrency, over all prompts or those of one category.

    Null is what can't be told: rates of a category that ran mixed with others, drafting of an arm
    that drafts nothing, experts of a model that has none.
    """

    arm: str
    concurrency: int
    category: str | None  # null: all
    prompts: int  # of a round
    emitted_tokens: int  # of the last round
    decode_tokens_per_s: float | None
    decode_tokens_per_s_min: float | None  # the slowest round
    decode_tokens_per_s_max: float | None
    tokens_per_s: float | None  # emitted over all time, prefill included
    prefill_tokens_per_s: float | None
    first_token_ms: float | None  # median over prompts
    step_ms: float | None  # median decode step
    step_ms_p95: float | None
    mean_accepted_length: float | None  # tokens emitted per block
    mean_depth: float | None  # of what was drafted, per block
    node_efficiency: float | None  # accepted tokens per verified node
    hit_rate: float | None
    rejection_rate: float | None
    cached_share: float | None  # of accepted tokens, those only the shared cache had proposed
    expert_cache_hit_ratio: float | None  # experts found prepared, per use
    head_ms: float | None  # a draft of the block head for one request
    peak_memory_bytes: int


def figures(
    arm: str, concurrency: int, category: str | None, rounds: Rounds, *, alone: bool
) -> Figures:
    """Summarise an arm's rounds; unless it ran `alone`, a category has no rates of its own."""
    runs = [run for pooled in rounds for run in pooled]
    answers = [answer for run in runs for answer in run.answers]
    rates = _known(map(decode_rate, rounds))
    steps = sorted(step for run in runs for step in run.step_ms)
    first = [answer.first_token_ms for answer in answers if answer.first_token_ms is not None]
    counters = _counters(answers)
    drafted = counters is not None and counters.drafted_depth > 0
    hit_rate = counters.draft_hit_rate if counters else None
    return Figures(
        arm=arm,
        concurrency=concurrency,
        category=category,
        prompts=sum(len(run.answers) for run in rounds[-1]),
        emitted_tokens=sum(run.emitted_tokens for run in rounds[-1]),
        decode_tokens_per_s=_median(rates) if alone else None,
        decode_tokens_per_s_min=min(rates) if alone and rates else None,
        decode_tokens_per_s_max=max(rates) if alone and rates else None,
        tokens_per_s=_median(_known(map(_whole_rate, rounds))) if alone else None,
        prefill_tokens_per_s=_median(_known(map(prefill_rate, rounds))) if alone else None,
        first_token_ms=_median(first),
        step_ms=_median(steps) if alone else None,
        step_ms_p95=percentile(steps, 0.95) if alone else None,
        mean_accepted_length=counters.mean_accepted_length if counters else None,
        mean_depth=counters.mean_drafted_depth if counters and drafted else None,
        node_efficiency=counters.node_efficiency if counters and drafted else None,
        hit_rate=hit_rate,
        rejection_rate=None if hit_rate is None else 1.0 - hit_rate,
        cached_share=(
            counters.cached_tokens / counters.accepted_tokens
            if counters and counters.accepted_tokens
            else None
        ),
        expert_cache_hit_ratio=_expert_hit_ratio(runs) if alone else None,
        head_ms=runs[0].head_ms,
        peak_memory_bytes=max(run.peak_memory_bytes for run in runs),
    )


def decode_rate(runs: Iterable[Run]) -> float | None:
    """Return tokens per second of the runs' decode steps; null if they have none."""
    runs = list(runs)
    return _rate(sum(run.decode_tokens for run in runs), sum(run.decode_ms for run in runs))


def prefill_rate(runs: Iterable[Run]) -> float | None:
    """Return prompt tokens per second of the runs' prefill steps; null if they have none."""
    runs = list(runs)
    return _rate(sum(run.prefill_tokens for run in runs), sum(run.prefill_ms for run in runs))


def ratio(
    ours: Rounds, theirs: Rounds, rate: Callable[[Iterable[Run]], float | None] = decode_rate
) -> float | None:
    """Return how many times as fast ours is: the median of the rounds' ratios."""
    pairs = [(rate(own), rate(other)) for own, other in zip(ours, theirs, strict=True)]
    return _median([own / other for own, other in pairs if own is not None and other])


def agreement(ours: Sequence[Run], theirs: Sequence[Run]) -> float | None:
    """Return the share of our tokens up to which each answer begins alike; null without tokens.

    Greedy answers of one model may part where two tokens are nearly as likely, since engines
    round differently. Little agreement means that they do not run the same model.
    """
    own = {answer.id: answer.token_ids for run in ours for answer in run.answers}
    other = {answer.id: answer.token_ids for run in theirs for answer in run.answers}
    alike = sum(_alike(tokens, other[name]) for name, tokens in own.items())
    total = sum(map(len, own.values()))
    return alike / total if total else None


def of_category(rounds: Rounds, names: frozenset[str]) -> list[list[Run]]:
    """Return the runs with the named answers only; all else is left as it was."""
    return [
        [
            msgspec.structs.replace(
                run, answers=tuple(answer for answer in run.answers if answer.id in names)
            )
            for run in pooled
        ]
        for pooled in rounds
    ]


def percentile(ascending: Sequence[float], share: float) -> float | None:
    """Return the smallest value that `share` of all values do not exceed; null if there is none."""
    if not ascending:
        return None
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(other)))


def _counters(answers: Sequence[Answer]) -> DraftCounters | None:
    known = [answer.counters for answer in answers if answer.counters is not None]
    if not known:
        return None
    total = DraftCounters()
    for counters in known:
        total = added(total, counters)
    return total


def _expert_hit_ratio(runs: Sequence[Run]) -> float | None:
    counted = [run.experts for run in runs if run.experts is not None]
    hits, lookups = sum(one.hits for one in counted), sum(one.lookups for one in counted)
    return hits / lookups if lookups else None


def _whole_rate(runs: Sequence[Run]) -> float | None:
    return _rate(sum(run.emitted_tokens for run in runs), sum(run.elapsed_ms for run in runs))


def _known(rates: Iterable[float | None]) -> list[float]:
    return [rate for rate in rates if rate is not None]


def _rate(tokens: int, elapsed_ms: float) -> float | None:
    return tokens * 1e3 / elapsed_ms if tokens and elapsed_ms else None


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None
