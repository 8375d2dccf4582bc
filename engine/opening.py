"""A model made ready to run: weights, tokenizer, limits, and who it says it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.loop.cost import Curve, StepCost
from engine.loop.decoding import PAGE_SIZE, DecodeLoop
from engine.loop.profiling import measured
from engine.model.loading import AnyDecoder, load_decoder
from engine.records import EngineInfo
from engine.scheduler.admission import Limits, check_config
from engine.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class OpenModel:
    """A loaded model. One loop at a time may run on it: they share its storage."""

    decoder: AnyDecoder
    tokenizer: Tokenizer
    limits: Limits
    info: EngineInfo
    curve: Curve  # milliseconds of a step by its rows

    def loop(
        self,
        config: EngineConfig,
        *,
        engine_epoch: str = "local",
        on_failure: Callable[[str, Exception], None] | None = None,
    ) -> DecodeLoop:
        """Return a new loop, with nothing cached, on this model."""
        return DecodeLoop(
            self.decoder,
            self.tokenizer,
            self.limits,
            config,
            engine_epoch=engine_epoch,
            cost=StepCost(self.curve),
            on_failure=on_failure,
        )


def open_model(path: Path | str, config: EngineConfig) -> OpenModel:
    """Load a `.dfm` as `config` says; its name is the file's.

    Raises InvalidModelFile, UnsupportedModel, InvalidConfig.
    """
    path = Path(path)
    tokenizer = Tokenizer.from_dfm(path)
    check_config(config, tokenizer.context_length)
    decoder = load_decoder(
        path,
        backend=config.backend,
        device=config.device,
        threads=config.threads,
        kv_tokens=config.kv_tokens,
        rope_scaling_factor=config.rope_scaling_factor,
    )
    return OpenModel(
        decoder,
        tokenizer,
        Limits(
            tokenizer.vocab_size,
            tokenizer.context_length,
            kv_tokens=config.kv_tokens // PAGE_SIZE * PAGE_SIZE,  # whole pages
        ),
        EngineInfo(
            model=path.stem,
            checksum=tokenizer.checksum,
            architecture=decoder.info.family,
            vocab_size=tokenizer.vocab_size,
            context_length=tokenizer.context_length,
            backend=decoder.backend,
            batch_invariant=decoder.batch_invariant,
            device=decoder.device,
            instruction_set=decoder.instruction_set,
            thread_count=decoder.threads,
            pid=os.getpid(),
            rope_scaling_factor=config.rope_scaling_factor,
        ),
        measured(decoder, config.max_step_rows, tokenizer.context_length),
    )
