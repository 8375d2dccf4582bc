"""What the model says of itself: prompts it sampled, responses it gave to them. Resumable.

A corpus is a folder of shards, each decided by (seed, index) alone and written whole or not at
all, so a run that was stopped goes on with the first shard that is missing. Every eighth shard,
from the second on, is *held out*: nothing is ever fitted to it.

Dims: N tokens of a shard, S sequences.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine.completions import complete, failed
from engine.config import EngineConfig
from engine.opening import OpenModel
from engine.records import FinishReason
from engine.requests import GenerationRequest, SamplingParams
from engine.tokenizer import Tokenizer
from engine.training.openings import QUESTIONS, TEXTS, Frame, chat_frame

HELD_OUT_EVERY = 8
SEQUENCES = 96  # of a shard
CONCURRENCY = 32
_CHAT_SHARE = 0.75  # of the sequences, where the model has a chat template
_GREEDY_SHARE = 0.85
_WARM = 0.8  # temperature of the other responses
_QUESTION_TOKENS = 72
_RESPONSE_TOKENS = 224
_LOOPS = 3  # a text that says the same this often in a row is cut there
_PERIOD_MAX = 48

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One prompt and the response to it."""

    tokens: NDArray[np.int32]
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the corpus."""

    index: int
    path: Path

    @property
    def held_out(self) -> bool:
        """Whether it is kept for evaluation."""
        return self.index % HELD_OUT_EVERY == 1

    def sequences(self) -> list[Sequence]:
        """Read the shard."""
        with np.load(self.path) as file:
            ends = np.cumsum(file["lengths"])[:-1]
            parts = np.split(file["tokens"], ends)
            prompts = file["prompts"].tolist()
        return [Sequence(part, prompt) for part, prompt in zip(parts, prompts, strict=True)]


def shards(folder: Path) -> Iterator[Shard]:
    """Yield the shards that are there, from the first on, up to the first gap."""
    index = 0
    while (path := folder / f"{index:05}.npz").is_file():
        yield Shard(index, path)
        index += 1


def response_tokens(shard: Shard) -> int:
    """Return how many of a shard's tokens are responses."""
    return sum(len(sequence.tokens) - sequence.prompt_length for sequence in shard.sequences())


def grow(
    folder: Path,
    model: OpenModel,
    config: EngineConfig,
    *,
    tokens: int,
    seed: int,
    progress: Progress = lambda _: None,
) -> int:
    """Add shards until the corpus has `tokens` response tokens; how many it has then.

    Both kinds of shard are made, whatever is asked for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = list(shards(folder))
    count, index = sum(map(response_tokens, known)), len(known)
    while count < tokens or index < 2:
        began = time.monotonic()
        made = _generated(model, config, np.random.default_rng((seed, index)))
        _write(folder / f"{index:05}.npz", made)
        added = sum(len(sequence.tokens) - sequence.prompt_length for sequence in made)
        count, index = count + added, index + 1
        rate = added / (time.monotonic() - began)
        progress(f"corpus: {count:,} of {tokens:,} tokens in {index} shards, {rate:.0f} tokens/s")
    return count


def _generated(
    model: OpenModel, config: EngineConfig, random: np.random.Generator
) -> list[Sequence]:
    """Sample prompts, then let the model respond to each."""
    tokenizer = model.tokenizer
    frame = chat_frame(tokenizer)
    begun = [_begun(tokenizer, frame, random) for _ in range(SEQUENCES)]
    loop = model.loop(config)

    def said(requests: list[GenerationRequest]) -> list[list[int]]:
        done = {}
        for completion in complete(loop, requests, concurrency=CONCURRENCY):
            if completion.finish_reason is FinishReason.ERROR:
                raise failed(completion)
            done[completion.request_id] = list(completion.token_ids)
        return [done[request.request_id] for request in requests]

    def request(name: str, prompt: list[int], limit: int, temperature: float) -> GenerationRequest:
        return GenerationRequest(
            request_id=name,
            tenant_id="training",
            prompt_ids=tuple(prompt),
            max_tokens=min(limit, tokenizer.context_length - len(prompt)),
            sampling=SamplingParams(temperature=temperature, seed=int(random.integers(2**31))),
        )

    questions = said(
        [request(f"q{at}", text.prompt, text.limit, 1.0) for at, text in enumerate(begun)]
    )
    prompts = []
    for text, question in zip(begun, questions, strict=True):
        own = question[:-1] if question[-1] in tokenizer.eos_ids else question
        prompts.append([*text.prompt, *own, *text.after])
    warm = random.random(len(prompts)) >= _GREEDY_SHARE
    responses = said(
        [
            request(f"r{at}", prompt, _RESPONSE_TOKENS, _WARM if warm[at] else 0.0)
            for at, prompt in enumerate(prompts)
        ]
    )
    return [
        Sequence(np.array([*prompt, *_unlooped(response)], np.int32), len(prompt))
        for prompt, response in zip(prompts, responses, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Begun:
    """The beginning of a prompt, how far to sample on, and what follows then."""

    prompt: list[int]
    limit: int
    after: tuple[int, ...]


def _begun(tokenizer: Tokenizer, frame: Frame | None, random: np.random.Generator) -> _Begun:
    if frame is not None and random.random() < _CHAT_SHARE:
        opening = QUESTIONS[int(random.integers(len(QUESTIONS)))]
        words = tokenizer.encode(opening) if opening else []
        return _Begun([*frame.before, *words], _QUESTION_TOKENS, frame.after)
    opening = TEXTS[int(random.integers(len(TEXTS)))]
    return _Begun(tokenizer.encode(opening), int(random.integers(8, _QUESTION_TOKENS)), ())


def _unlooped(tokens: list[int]) -> list[int]:
    """Cut a response where it has said one thing `_LOOPS` times in a row: it would not stop."""
    for end in range(1, len(tokens) + 1):
        for period in range(1, min(_PERIOD_MAX, end // _LOOPS) + 1):
            # short periods, such as dashes in a table, are left to go on for longer
            span = period * max(_LOOPS, 24 // period)
            if (
                end >= span
                and tokens[end - span : end - period] == tokens[end - span + period : end]
            ):
                return tokens[:end]
    return tokens


def _write(path: Path, sequences: list[Sequence]) -> None:
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez(
            file,
            tokens=np.concatenate([sequence.tokens for sequence in sequences]),
            lengths=np.array([len(sequence.tokens) for sequence in sequences], np.int32),
            prompts=np.array([sequence.prompt_length for sequence in sequences], np.int32),
        )
    os.replace(partial, path)
