"""Hugging Face transformers as an arm: the GGUF dequantised, batches padded on the left.

A batch is static: the next prompts wait until all of it has ended, which is what its `generate`
does too. The weights are bfloat16 where the processor multiplies it, else float32.
"""

from __future__ import annotations

import importlib
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.bench.machine import machine
from engine.bench.records import Answer, Ask, Run, Scored, Setup, StepLog, Windows, Workload
from engine.errors import EngineError


class TransformersArm:
    """A GGUF loaded by transformers."""

    def __init__(self, setup: Setup) -> None:
        """Raises EngineError when transformers is absent."""
        try:
            self._transformers: Any = importlib.import_module("transformers")
        except ModuleNotFoundError as error:
            raise EngineError(
                "the peer transformers is not installed: install dflash-gateway[bench]"
            ) from error
        torch.set_num_threads(setup.threads)
        self._threads, self._eos_ids = setup.threads, torch.tensor(setup.eos_ids)
        bfloat16 = {"avx512_bf16", "amx_bf16"} & set(machine()["vector units"].split())
        self._dtype = torch.bfloat16 if bfloat16 else torch.float32
        self._transformers.logging.disable_progress_bar()
        path = Path(setup.path)
        self._name = path.name
        self._model = self._transformers.AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=self._dtype
        ).eval()

    @property
    def details(self) -> dict[str, str]:
        """What computes here."""
        return {
            "version": f"transformers {self._transformers.__version__}",
            "model": f"{self._name}, dequantised",
            "dtype": str(self._dtype).removeprefix("torch."),
            "threads": str(self._threads),
        }

    @torch.inference_mode()
    def run(self, workload: Workload) -> Run:
        """Continue the prompts, a batch of `concurrency` after the other."""
        steps, answers = StepLog.of(workload), []
        generator = torch.Generator().manual_seed(workload.seed)
        began = time.perf_counter()
        for first in range(0, len(workload.asks), workload.concurrency):
            batch = workload.asks[first : first + workload.concurrency]
            answers += self._batch(batch, workload, generator, steps)
        return steps.run(tuple(answers), (time.perf_counter() - began) * 1e3)

    @torch.inference_mode()
    def score(self, windows: Windows) -> Scored:
        """Score windows, each in one pass."""
        total, tokens = 0.0, 0
        for window, first in zip(windows.windows, windows.firsts, strict=True):
            ids = torch.tensor([window])
            logits = self._model(ids, use_cache=False).logits[0, first - 1 : -1].double()
            likely = logits.log_softmax(-1).gather(1, ids[0, first:, None])
            total -= float(likely.sum())
            tokens += len(window) - first
        return Scored(total, tokens)

    def _batch(
        self, asks: tuple[Ask, ...], workload: Workload, generator: torch.Generator, steps: StepLog
    ) -> list[Answer]:
        started = time.perf_counter()
        longest = max(len(ask.prompt_ids) for ask in asks)
        ids = torch.zeros(len(asks), longest, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, ask in enumerate(asks):
            ids[row, longest - len(ask.prompt_ids) :] = torch.tensor(ask.prompt_ids)
            mask[row, longest - len(ask.prompt_ids) :] = 1
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = self._transformers.DynamicCache()
        drawn: list[Tensor] = []
        alive = torch.ones(len(asks), dtype=torch.bool)
        first_token_ms = 0.0
        while alive.any() and len(drawn) < workload.max_tokens:
            logits = self._model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            tokens = _drawn(logits, workload.temperature, generator)
            drawn.append(torch.where(alive, tokens, -1))
            emitted = int(alive.sum())
            alive &= ~torch.isin(tokens, self._eos_ids)
            ids, positions = tokens[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones(len(asks), 1, dtype=torch.int64)], 1)
            ended = time.perf_counter()
            elapsed_ms, started = (ended - started) * 1e3, ended
            prompt_tokens = 0 if len(drawn) > 1 else sum(len(ask.prompt_ids) for ask in asks)
            if prompt_tokens:
                first_token_ms = elapsed_ms
            steps.take(
                elapsed_ms,
                requests=len(asks),  # who has ended is still computed
                prompt_tokens=prompt_tokens,
                emitted_tokens=emitted,
            )
        rows = torch.stack(drawn, 1).tolist()
        return [
            Answer(ask.id, tuple(token for token in row if token >= 0), first_token_ms)
            for ask, row in zip(asks, rows, strict=True)
        ]


def _drawn(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0.0:
        return logits.argmax(-1)
    likely = (logits.float() / temperature).softmax(-1)
    return torch.multinomial(likely, 1, generator=generator)[:, 0]
