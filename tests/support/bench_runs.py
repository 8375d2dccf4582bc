"""Runs as an arm would report them, and an arm that reports what it is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.bench.records import Answer, Ask, Run, Workload
from engine.records import DraftCounters


def ask(name: str, category: str = "code", length: int = 3) -> Ask:
    return Ask(name, category, tuple(range(length)))


def answer(name: str, *token_ids: int, counters: DraftCounters | None = None) -> Answer:
    return Answer(name, token_ids, first_token_ms=10.0, counters=counters)


def run(*answers: Answer, tokens: int = 10, ms: float = 100.0, memory: int = 2**20) -> Run:
    return Run(
        answers=answers,
        elapsed_ms=2 * ms,
        prefill_tokens=30,
        prefill_ms=ms,
        decode_tokens=tokens,
        decode_ms=ms,
        step_ms=(ms / 2, ms / 4, ms / 4),
        peak_memory_bytes=memory,
    )


@dataclass
class ToldArm:
    """Answers every prompt with `says(ask)`, at a pace of `ms` for its tokens."""

    ms: float = 100.0
    says: Callable[[Ask, Workload], tuple[int, ...]] = lambda _ask, _workload: (1, 2, 3)
    heard: list[Workload] = field(default_factory=list)

    def run(self, workload: Workload) -> Run:
        self.heard.append(workload)
        answers = [answer(each.id, *self.says(each, workload)) for each in workload.asks]
        tokens = sum(len(each.token_ids) for each in answers)
        return run(*answers, tokens=tokens, ms=self.ms)
