"""Doing a request's work again: alone, undrafted, with nothing cached.

What comes out is what the request should have said, whatever else the engine was doing then; see
`docs/decisions/0002-batch-invariance.md`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from engine.config import EngineConfig
from engine.opening import OpenModel, open_model
from engine.records import EngineInfo, StepRecord
from engine.requests import GenerationRequest


class Replayer:
    """One model, ready to repeat requests. Not thread-safe."""

    def __init__(self, model: OpenModel, config: EngineConfig) -> None:
        self._model = model
        self._config = _undrafted(config)

    @classmethod
    def open(cls, path: Path | str, config: EngineConfig) -> Replayer:
        """Load a model. Raises InvalidModelFile, UnsupportedModel, InvalidConfig."""
        return cls(open_model(path, _undrafted(config)), config)

    @property
    def info(self) -> EngineInfo:
        """What the work is repeated on."""
        return self._model.info

    def prompt_ids(self, prompt: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the tokens of a prompt as admission keeps it: `prompt` or `messages`."""
        tokenizer = self._model.tokenizer
        messages: Sequence[Mapping[str, str]] | None = prompt.get("messages")
        if messages is not None:
            return tuple(tokenizer.encode_chat(messages))
        return tuple(tokenizer.encode(prompt["prompt"]))

    def replay(self, request: GenerationRequest, tokens_max: int) -> Iterator[StepRecord]:
        """Yield the records of a request's steps, until it ends or has said `tokens_max` tokens.

        Raises InvalidRequest or PromptTooLong.
        """
        loop = self._model.loop(self._config)
        loop.submit(request)
        said = 0
        while said < tokens_max and (step := loop.step()) is not None:
            said += sum(len(block.token_ids) for block in step.blocks)
            yield step


def _undrafted(config: EngineConfig) -> EngineConfig:
    return msgspec.structs.replace(config, draft=False)
