"""What the bench asks of an engine, and what it hears back; torch-free, and JSON on the pipe.

An *arm* is one way of decoding: ours, a variant of ours, a peer. Times are milliseconds of a
monotonic clock, as seen by the loop that drives the arm.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from engine.bench.machine import peak_memory_bytes
from engine.config import EngineConfig
from engine.records import DraftCounters, ExpertCounters


class Setup(msgspec.Struct, frozen=True):
    """Which engine a worker opens, with how much room."""

    kind: str  # "dflash", "llama.cpp", "transformers"
    path: str  # a .dfm for ours, a GGUF for peers
    threads: int
    eos_ids: tuple[int, ...]
    config: EngineConfig | None = None  # ours only


class Ask(msgspec.Struct, frozen=True):
    """One prompt, as token ids."""

    id: str
    category: str
    prompt_ids: tuple[int, ...]


class Workload(msgspec.Struct, frozen=True, tag="run"):
    """Prompts to continue, `concurrency` at a time, each up to `max_tokens` or its end."""

    asks: tuple[Ask, ...]
    concurrency: int
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    variant: str = ""  # of the arm: see `engine.bench.variants`
    sustained: bool = False  # more prompts than places: how the batch empties is left out


class Windows(msgspec.Struct, frozen=True, tag="score"):
    """Token windows to score: see `engine.perplexity.windows`."""

    windows: tuple[tuple[int, ...], ...]
    firsts: tuple[int, ...]  # of each window, the index of the first token that counts


class Answer(msgspec.Struct, frozen=True):
    """What came of one prompt."""

    id: str
    token_ids: tuple[int, ...]
    first_token_ms: float | None  # since it was handed over; null if none came
    counters: DraftCounters | None = None  # null where the arm has none


class Opened(msgspec.Struct, frozen=True, tag="opened"):
    """An engine that is ready, and what it says it is."""

    details: dict[str, str]
    opening_ms: float


class Run(msgspec.Struct, frozen=True, tag="ran"):
    """A workload done.

    A step that computed prompt tokens is a prefill step, whatever else it computed; the others are
    decode steps. So prompts of others in the batch slow nobody's decoding on paper. Of a sustained
    workload only steps of a full batch count as decode steps, if there are any: when no more
    prompts wait, who ends first leaves the others to a batch that costs nearly as much.
    """

    answers: tuple[Answer, ...]
    elapsed_ms: float
    prefill_tokens: int
    prefill_ms: float
    decode_tokens: int
    decode_ms: float
    step_ms: tuple[float, ...]  # of each decode step; empty where they can't be told apart
    peak_memory_bytes: int  # resident, of the worker since it started
    experts: ExpertCounters | None = None  # of this workload; null where the model has none
    head_ms: float | None = None  # a draft of the arm's block head for one request; null: no head

    @property
    def emitted_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(len(answer.token_ids) for answer in self.answers)


class Scored(msgspec.Struct, frozen=True, tag="scored"):
    """Windows scored."""

    negative_log_likelihood: float  # nats, summed over the tokens that count
    tokens: int


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """Why a worker could not do what it was asked."""

    reason: str


Request = Workload | Windows
Reply = Opened | Run | Scored | Failed


class _Step(NamedTuple):
    requests: int
    elapsed_ms: float
    emitted_tokens: int


@dataclass(slots=True)
class StepLog:
    """Adds up the steps of one workload while it runs."""

    full: int = 0  # requests of the least batch whose steps count as decode steps, if there are any
    prefill_tokens: int = 0
    prefill_ms: float = 0.0
    _others: list[_Step] = field(default_factory=list)

    @classmethod
    def of(cls, workload: Workload) -> StepLog:
        """Return an empty log for a workload."""
        return cls(workload.concurrency if workload.sustained else 0)

    def take(
        self, elapsed_ms: float, *, requests: int, prompt_tokens: int, emitted_tokens: int
    ) -> None:
        """Take one step, in which so many requests took part."""
        if prompt_tokens:
            self.prefill_tokens += prompt_tokens
            self.prefill_ms += elapsed_ms
        else:
            self._others.append(_Step(requests, elapsed_ms, emitted_tokens))

    def run(self, answers: tuple[Answer, ...], elapsed_ms: float) -> Run:
        """Return the workload's record."""
        full = [step for step in self._others if step.requests >= self.full]
        steps = full or self._others
        return Run(
            answers=answers,
            elapsed_ms=elapsed_ms,
            prefill_tokens=self.prefill_tokens,
            prefill_ms=self.prefill_ms,
            decode_tokens=sum(step.emitted_tokens for step in steps),
            decode_ms=sum(step.elapsed_ms for step in steps),
            step_ms=tuple(step.elapsed_ms for step in steps),
            peak_memory_bytes=peak_memory_bytes(),
        )

    def unstepped(
        self, answers: tuple[Answer, ...], elapsed_ms: float, decode_tokens: int, decode_ms: float
    ) -> Run:
        """Return the record of a workload whose decode steps could not be told apart."""
        run = self.run(answers, elapsed_ms)
        return msgspec.structs.replace(run, decode_tokens=decode_tokens, decode_ms=decode_ms)
