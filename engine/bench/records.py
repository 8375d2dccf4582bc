"""What the bench asks of an engine, and what it hears back; torch-free, and JSON on the pipe.

An *arm* is one way of decoding: ours, a variant of ours, a peer. Times are milliseconds of a
monotonic clock, as seen by the loop that drives the arm.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from engine.bench.machine import peak_memory_bytes
from engine.config import EngineConfig
from engine.records import DraftCounters


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

    A step that computed prompt tokens is a prefill step, whatever else it computed; of the others,
    those of a full batch are decode steps. So prompts of others in the batch slow nobody's decoding
    on paper, nor does it count how a batch empties when no more prompts wait: who ends first would
    leave the others to a batch that costs nearly as much.
    """

    answers: tuple[Answer, ...]
    elapsed_ms: float
    prefill_tokens: int
    prefill_ms: float
    decode_tokens: int
    decode_ms: float
    step_ms: tuple[float, ...]  # of each decode step; empty where they can't be told apart
    peak_memory_bytes: int  # resident, of the worker since it started

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


@dataclass(slots=True)
class StepLog:
    """Adds up the steps of one workload while it runs, `concurrency` requests at a time."""

    concurrency: int
    prefill_tokens: int = 0
    prefill_ms: float = 0.0
    decode_tokens: int = 0
    step_ms: list[float] = field(default_factory=list)

    def take(
        self, elapsed_ms: float, *, requests: int, prompt_tokens: int, emitted_tokens: int
    ) -> None:
        """Take one step, in which so many requests took part."""
        if prompt_tokens:
            self.prefill_tokens += prompt_tokens
            self.prefill_ms += elapsed_ms
        elif requests == self.concurrency:
            self.decode_tokens += emitted_tokens
            self.step_ms.append(elapsed_ms)

    def run(self, answers: tuple[Answer, ...], elapsed_ms: float) -> Run:
        """Return the workload's record."""
        return Run(
            answers=answers,
            elapsed_ms=elapsed_ms,
            prefill_tokens=self.prefill_tokens,
            prefill_ms=self.prefill_ms,
            decode_tokens=self.decode_tokens,
            decode_ms=sum(self.step_ms),
            step_ms=tuple(self.step_ms),
            peak_memory_bytes=peak_memory_bytes(),
        )

    def unstepped(
        self, answers: tuple[Answer, ...], elapsed_ms: float, decode_tokens: int, decode_ms: float
    ) -> Run:
        """Return the record of a workload whose decode steps could not be told apart."""
        run = self.run(answers, elapsed_ms)
        return msgspec.structs.replace(run, decode_tokens=decode_tokens, decode_ms=decode_ms)
