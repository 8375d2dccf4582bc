"""llama.cpp as an arm, through llama-cpp-python's low-level functions: continuous batching.

Every step is one `llama_decode` over all running sequences, their next tokens first and then
prompts that wait, as llama.cpp's own server does it. Weight repacking and the placing of keys are
left to llama.cpp's own judgement. Its flash attention helps some workloads and harms others, so
each workload runs with and without it the first time, and from then on with what decoded faster.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.bench.records import Answer, Ask, Run, Scored, Setup, StepLog, Windows, Workload
from engine.bench.statistics import decode_rate
from engine.errors import EngineError

BATCH_TOKENS = 2048  # of one llama_decode at most: llama.cpp's default
LOOKUP = "lookup"  # a variant: llama-cpp-python's drafts from the text's own n-grams
FLASH_ATTENTION = (1, 0)  # of llama_flash_attn_type: enabled, disabled
ERROR_LEVEL = 4  # of llama.cpp's log


@dataclass(slots=True)
class _Sequence:
    """A prompt that is being continued."""

    ask: Ask
    place: int
    handed_over: float  # seconds
    first_token: float | None = None
    computed: int = 0  # of the prompt
    token_ids: list[int] = field(default_factory=list)


class LlamaArm:
    """A GGUF loaded by llama.cpp."""

    def __init__(self, setup: Setup) -> None:
        """Raises EngineError when llama-cpp-python is absent or refuses the file."""
        try:
            self._llama: Any = importlib.import_module("llama_cpp")
        except ModuleNotFoundError as error:
            raise EngineError(
                "the peer llama.cpp needs llama-cpp-python: install dflash-gateway[bench]"
            ) from error
        llama = self._llama
        self._log = llama.llama_log_callback(_logged)  # llama.cpp keeps a pointer to it
        llama.llama_log_set(self._log, None)
        llama.llama_backend_init()
        self._path, self._threads = setup.path, setup.threads
        self._eos_ids = frozenset(setup.eos_ids)
        self._model = llama.llama_model_load_from_file(
            setup.path.encode(), llama.llama_model_default_params()
        )
        if not self._model:
            raise EngineError(f"llama.cpp cannot load {setup.path}")
        self._vocabulary_size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self._context: Any = None
        self._room = (0, 0, 0)  # sequences, tokens of each, flash attention
        self._flash: dict[tuple[int, tuple[Ask, ...]], int] = {}  # what suits a workload

    @property
    def details(self) -> dict[str, str]:
        """What computes here, and which processor features its build uses."""
        return {
            "version": f"llama-cpp-python {self._llama.__version__}",
            "model": Path(self._path).name,
            "threads": str(self._threads),
            "build": self._llama.llama_print_system_info().decode().strip(),
        }

    def run(self, workload: Workload) -> Run:
        """Continue the prompts; the context is made, and its memory cleared, before the clock."""
        if workload.variant == LOOKUP:
            return self._looked_up(workload)
        key = (workload.concurrency, workload.asks)
        if key in self._flash:
            return self._attended(workload, self._flash[key])
        runs = {flash: self._attended(workload, flash) for flash in FLASH_ATTENTION}
        self._flash[key] = max(runs, key=lambda flash: decode_rate([runs[flash]]) or 0.0)
        return runs[self._flash[key]]

    def score(self, windows: Windows) -> Scored:
        """Score windows, each from an empty context."""
        self._open(1, max(map(len, windows.windows)), FLASH_ATTENTION[0])
        total, tokens = 0.0, 0
        for window, first in zip(windows.windows, windows.firsts, strict=True):
            self._clear()
            batch = _Batch(self._llama, len(window))
            for position, token in enumerate(window):
                batch.add(token, position, 0, wanted=True)
            self._decode(batch)
            pointer = self._llama.llama_get_logits(self._context)
            logits = np.ctypeslib.as_array(pointer, (len(window), self._vocabulary_size))
            for position in range(first, len(window)):
                row = logits[position - 1].astype(np.float64)
                top = row.max()
                total += float(np.log(np.exp(row - top).sum()) + top - row[window[position]])
                tokens += 1
            batch.free()
        return Scored(total, tokens)

    def _attended(self, workload: Workload, flash: int) -> Run:
        longest = max(len(ask.prompt_ids) for ask in workload.asks) + workload.max_tokens
        self._open(workload.concurrency, longest, flash)
        sampler = self._sampler(workload)
        try:
            return self._batched(workload, sampler)
        finally:
            self._llama.llama_sampler_free(sampler)

    def _batched(self, workload: Workload, sampler: Any) -> Run:
        waiting = deque(workload.asks)
        places = list(range(workload.concurrency))
        running: list[_Sequence] = []
        answers: dict[str, Answer] = {}
        batch, steps = _Batch(self._llama, BATCH_TOKENS), StepLog.of(workload)
        began = time.perf_counter()
        while waiting or running:
            started = time.perf_counter()
            while waiting and places:
                running.append(_Sequence(waiting.popleft(), places.pop(0), started))
            wanted, prompt_tokens = _filled(batch, running)
            self._decode(batch)
            for sequence, row in wanted:
                token = self._llama.llama_sampler_sample(sampler, self._context, row)
                sequence.token_ids.append(token)
            ended = time.perf_counter()
            steps.take(
                (ended - started) * 1e3,
                requests=len(running),
                prompt_tokens=prompt_tokens,
                emitted_tokens=len(wanted),
            )
            for sequence, _ in wanted:
                sequence.first_token = sequence.first_token or ended
                if self._over(sequence.token_ids, workload):
                    running.remove(sequence)
                    places.append(sequence.place)
                    self._forget(sequence.place)
                    answers[sequence.ask.id] = _answer(sequence)
        elapsed_ms = (time.perf_counter() - began) * 1e3
        batch.free()
        return steps.run(tuple(answers[ask.id] for ask in workload.asks), elapsed_ms)

    def _looked_up(self, workload: Workload) -> Run:
        """Continue one prompt after another with llama-cpp-python's prompt lookup decoding.

        Its drafting lives in the high-level class, which emits tokens one by one: its decode time
        runs from the first token to the last.
        """
        speculation = importlib.import_module("llama_cpp.llama_speculative")
        longest = max(len(ask.prompt_ids) for ask in workload.asks) + workload.max_tokens
        model = self._llama.Llama(
            self._path,
            n_ctx=_rounded(longest + 16),
            n_threads=self._threads,
            n_threads_batch=self._threads,
            draft_model=speculation.LlamaPromptLookupDecoding(),
            logits_all=True,
            seed=workload.seed,
            verbose=False,
        )
        began = time.perf_counter()
        answers, steps, decode_ms, decode_tokens = [], StepLog(), 0.0, 0
        for ask in workload.asks:
            model.reset()
            sequence = _Sequence(ask, 0, time.perf_counter())
            ended = sequence.handed_over
            tokens = model.generate(
                list(ask.prompt_ids),
                temp=workload.temperature,
                top_k=0,
                top_p=1.0,
                min_p=0.0,
                repeat_penalty=1.0,
            )
            for token in tokens:
                ended = time.perf_counter()
                sequence.token_ids.append(token)
                if sequence.first_token is None:
                    sequence.first_token = ended
                    prefill_ms = (ended - sequence.handed_over) * 1e3
                    steps.take(
                        prefill_ms,
                        requests=1,
                        prompt_tokens=len(ask.prompt_ids),
                        emitted_tokens=1,
                    )
                if self._over(sequence.token_ids, workload):
                    break
            if sequence.first_token is not None:
                decode_ms += (ended - sequence.first_token) * 1e3
                decode_tokens += len(sequence.token_ids) - 1
            answers.append(_answer(sequence))
        elapsed_ms = (time.perf_counter() - began) * 1e3
        model.close()
        return steps.unstepped(tuple(answers), elapsed_ms, decode_tokens, decode_ms)

    def _over(self, token_ids: list[int], workload: Workload) -> bool:
        return token_ids[-1] in self._eos_ids or len(token_ids) >= workload.max_tokens

    def _open(self, sequences: int, tokens: int, flash: int) -> None:
        """Make room for so many sequences, or clear the room that is there if it is the same."""
        room = (sequences, _rounded(tokens), flash)
        if self._room == room:
            self._clear()
            return
        llama = self._llama
        if self._context is not None:
            llama.llama_free(self._context)
        params = llama.llama_context_default_params()
        params.n_ctx = _rounded(tokens) * sequences
        params.flash_attn_type = flash
        params.n_batch = BATCH_TOKENS
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = self._threads
        self._context = llama.llama_init_from_model(self._model, params)
        if not self._context:
            raise EngineError(f"llama.cpp has no room for {sequences} times {tokens} tokens")
        self._room = room

    def _clear(self) -> None:
        self._llama.llama_memory_clear(self._llama.llama_get_memory(self._context), False)

    def _forget(self, place: int) -> None:
        memory = self._llama.llama_get_memory(self._context)
        self._llama.llama_memory_seq_rm(memory, place, -1, -1)

    def _decode(self, batch: _Batch) -> None:
        status = self._llama.llama_decode(self._context, batch.batch)
        if status != 0:
            raise EngineError(f"llama_decode failed with status {status}")

    def _sampler(self, workload: Workload) -> Any:
        llama = self._llama
        chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        if workload.temperature > 0.0:
            llama.llama_sampler_chain_add(
                chain, llama.llama_sampler_init_temp(workload.temperature)
            )
            llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_dist(workload.seed))
        else:
            llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_greedy())
        return chain


class _Batch:
    """A llama_batch whose arrays are seen as numpy's."""

    def __init__(self, llama: Any, capacity: int) -> None:
        self.batch = llama.llama_batch_init(capacity, 0, 1)
        self._free = llama.llama_batch_free
        self._tokens: NDArray[np.int32] = np.ctypeslib.as_array(self.batch.token, (capacity,))
        self._positions: NDArray[np.int32] = np.ctypeslib.as_array(self.batch.pos, (capacity,))
        counts = np.ctypeslib.as_array(self.batch.n_seq_id, (capacity,))
        counts[:] = 1
        self._wanted: NDArray[np.int8] = np.ctypeslib.as_array(self.batch.logits, (capacity,))
        self._capacity = capacity

    @property
    def spare(self) -> int:
        """How many tokens still fit."""
        return self._capacity - int(self.batch.n_tokens)

    def clear(self) -> None:
        """Empty it."""
        self.batch.n_tokens = 0

    def add(self, token: int, position: int, place: int, *, wanted: bool) -> int:
        """Append one token of the sequence at `place`; return its row."""
        row = int(self.batch.n_tokens)
        self._tokens[row], self._positions[row], self._wanted[row] = token, position, wanted
        self.batch.seq_id[row][0] = place
        self.batch.n_tokens = row + 1
        return row

    def free(self) -> None:
        """Give its memory back."""
        self._free(self.batch)


def _filled(batch: _Batch, running: list[_Sequence]) -> tuple[list[tuple[_Sequence, int]], int]:
    """Fill the batch; return who draws at which row, and how many prompt tokens are in it."""
    batch.clear()
    wanted, prompt_tokens = [], 0
    for sequence in running:
        if sequence.token_ids:
            position = len(sequence.ask.prompt_ids) + len(sequence.token_ids) - 1
            row = batch.add(sequence.token_ids[-1], position, sequence.place, wanted=True)
            wanted.append((sequence, row))
    for sequence in running:
        prompt, start = sequence.ask.prompt_ids, sequence.computed
        taken = min(len(prompt) - start, batch.spare)
        for position in range(start, start + taken):
            last = position + 1 == len(prompt)
            row = batch.add(prompt[position], position, sequence.place, wanted=last)
            if last:
                wanted.append((sequence, row))
        sequence.computed += taken
        prompt_tokens += taken
    return wanted, prompt_tokens


def _answer(sequence: _Sequence) -> Answer:
    first = sequence.first_token
    return Answer(
        id=sequence.ask.id,
        token_ids=tuple(sequence.token_ids),
        first_token_ms=None if first is None else (first - sequence.handed_over) * 1e3,
    )


def _rounded(tokens: int) -> int:
    """Round a context up to the 256 tokens that llama.cpp pads it to."""
    return -(-tokens // 256) * 256


def _logged(level: int, text: bytes, _data: ctypes.c_void_p | None) -> None:
    if level == ERROR_LEVEL:
        print(text.decode(errors="replace"), end="", flush=True)  # noqa: T201 -- to stderr there
