"""The Python API: a model, and its `generate`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import torch
from torch import Tensor

from engine.completions import Completion, complete, failed
from engine.config import SHIPPED_PROFILE, EngineConfig
from engine.errors import InvalidRequest, ModelNotFound
from engine.loop.decoding import DecodeLoop
from engine.opening import OpenModel, open_model
from engine.processors import LogitsProcessor
from engine.records import EngineInfo, FinishReason
from engine.requests import GenerationRequest, SamplingParams
from engine.scheduler.admission import check_config
from engine.tokenizer import Tokenizer

Inputs = Tensor | Sequence[int] | Sequence[Sequence[int]]


class DFlashModel:
    """A model in this process. Calls from several threads take turns."""

    def __init__(self, model: OpenModel, config: EngineConfig) -> None:
        self._model = model
        self._config = config
        self._running = Lock()
        self._ids = count()
        self._loop: DecodeLoop | None = None
        self._loop_config: EngineConfig | None = None
        self._errors: dict[str, Exception] = {}

    @classmethod
    def from_pretrained(
        cls,
        path: Path | str,
        *,
        backend: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        kv_tokens: int = 16384,
        profile: str = SHIPPED_PROFILE,
        **parameters: Any,
    ) -> DFlashModel:
        """Load a `.dfm`. Raises ModelNotFound, InvalidModelFile, UnsupportedModel, InvalidConfig.

        `kv_tokens` bounds the tokens, prompts included, that can be live at once; `parameters` are
        further ones of `EngineConfig`, above those of the profile.
        """
        if not Path(path).is_file():
            raise ModelNotFound(f"no model file at {path}")
        config = EngineConfig.of(
            profile,
            backend=backend,
            device=device,
            threads=threads,
            kv_tokens=kv_tokens,
            **parameters,
        )
        return cls(open_model(path, config), config)

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._model.tokenizer

    @property
    def info(self) -> EngineInfo:
        """What runs the model."""
        return self._model.info

    def generate(
        self,
        inputs: Inputs,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int | Sequence[int] = 0,
        repetition_penalty: float = 1.0,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        json_schema: Mapping[str, Any] | str | None = None,
        stop: Sequence[str] = (),
        logits_processor: Iterable[LogitsProcessor] = (),
        draft: bool = True,
        draft_block_size: int | None = None,
        verifier_batch_size: int | None = None,
        node_budget: int | None = None,
        entropy_threshold: float | None = None,
        rollback: str | None = None,
    ) -> Tensor:
        """Continue each row of token ids; returns prompts and continuations, [b, longest] int64.

        `inputs` is one prompt or a batch, not padded; rows of a list may differ in length. Rows are
        padded on the right with the lowest end-of-text id. A row's tokens depend on nothing but
        itself: not on its neighbours, not on drafting. Rows with the same seed share their
        uniforms; give one seed per row where equal prompts should differ. `repetition_penalty`
        counts prompt and output, as transformers does; `frequency_penalty`, `presence_penalty` and
        `logit_bias` are OpenAI's. An output that ends by itself satisfies `json_schema`. Drafting
        parameters are the model's own where they are null. Raises InvalidRequest, and EngineError
        where a logits processor fails.
        """
        changes = {
            "draft_block_size": draft_block_size,
            "verifier_batch_size": verifier_batch_size,
            "node_budget": node_budget,
            "entropy_threshold": entropy_threshold,
            "rollback": rollback,
        }
        completions = self.complete(
            inputs,
            max_new_tokens=max_new_tokens,
            sampling=SamplingParams(
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                repetition_penalty=repetition_penalty,
                frequency_penalty=frequency_penalty,
                presence_penalty=presence_penalty,
                logit_bias=tuple(sorted((logit_bias or {}).items())),
            ),
            seed=seed,
            json_schema=_schema_text(json_schema),
            stop=stop,
            logits_processor=logits_processor,
            config=msgspec.structs.replace(
                self._config,
                draft=draft and self._config.draft,
                **{name: value for name, value in changes.items() if value is not None},
            ),
        )
        prompts = _rows(inputs)
        rows = [
            [*prompt, *completion.token_ids]
            for prompt, completion in zip(prompts, completions, strict=True)
        ]
        longest = max(map(len, rows))
        padding = min(self.tokenizer.eos_ids, default=0)
        return torch.tensor([row + [padding] * (longest - len(row)) for row in rows])

    def complete(
        self,
        inputs: Inputs,
        *,
        max_new_tokens: int,
        sampling: SamplingParams,
        seed: int | Sequence[int],
        stop: Sequence[str],
        logits_processor: Iterable[LogitsProcessor],
        config: EngineConfig,
        json_schema: str | None = None,
        top_logprobs: int = 0,
    ) -> list[Completion]:
        """Continue each row and say how it went: text, scores, counters, times. See `generate`.

        `top_logprobs` tokens are reported beside each, by the model's own log-probabilities.
        Of `config`, only the drafting parameters and the step's limits count here.
        """
        prompts = _rows(inputs)
        seeds = [seed] * len(prompts) if isinstance(seed, int) else list(seed)
        if len(seeds) != len(prompts):
            raise InvalidRequest(f"{len(seeds)} seeds for {len(prompts)} rows", "seed")
        with self._running:
            loop = self._loop_for(config)
            requests = [
                GenerationRequest(
                    request_id=f"row-{next(self._ids)}",
                    tenant_id="local",
                    prompt_ids=tuple(prompt),
                    max_tokens=max_new_tokens,
                    sampling=msgspec.structs.replace(sampling, seed=row_seed),
                    stop=tuple(stop),
                    json_schema=json_schema,
                    top_logprobs=top_logprobs,
                )
                for prompt, row_seed in zip(prompts, seeds, strict=True)
            ]
            for request in requests:
                loop.limits.check(request)
            done = complete(
                loop,
                requests,
                concurrency=config.max_running,
                processors=tuple(logits_processor),
            )
            by_id = {completion.request_id: completion for completion in done}
            completions = [by_id[request.request_id] for request in requests]
            for completion in completions:
                if completion.finish_reason is FinishReason.ERROR:
                    cause = self._errors.get(completion.request_id)
                    self._errors.clear()
                    raise failed(completion) from cause
        return completions

    def _loop_for(self, config: EngineConfig) -> DecodeLoop:
        """Return the last loop, with what it has cached, if it ran under the same parameters."""
        if self._loop is None or self._loop_config != config or self._loop.busy:
            experts = self._model.decoder.experts is not None
            check_config(config, self.tokenizer.context_length, experts=experts)
            self._loop = self._model.loop(config, on_failure=self._errors.__setitem__)
            self._loop_config = config
        return self._loop


def _schema_text(schema: Mapping[str, Any] | str | None) -> str | None:
    return json.dumps(schema) if isinstance(schema, Mapping) else schema


def _rows(inputs: Inputs) -> list[list[int]]:
    if isinstance(inputs, Tensor):
        if inputs.dim() not in {1, 2} or inputs.is_floating_point() or inputs.is_complex():
            raise InvalidRequest("inputs must be a tensor of token ids, [n] or [b, n]", "inputs")
        inputs = inputs.tolist()
    rows = list(inputs)
    if not rows:
        raise InvalidRequest("inputs are empty", "inputs")
    if all(isinstance(row, int) for row in rows):
        rows = [rows]
    if not all(
        isinstance(row, Sequence) and all(isinstance(token, int) for token in row) for row in rows
    ):
        raise InvalidRequest("inputs must be token ids, one row or a list of rows", "inputs")
    return [list(row) for row in rows]
