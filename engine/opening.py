"""A model made ready to run: weights, tokenizer, limits, and who it says it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.dfm.container import ModelFile
from engine.dfm.header import read_header
from engine.draft.foresight import Foresight
from engine.draft.head.choosing import AUTO, chosen_head
from engine.draft.head.file import HeadFile
from engine.draft.head.serving import TappedDecoder, open_block_head
from engine.grammar.grammars import Grammars
from engine.loop.cost import Curve, StepCost
from engine.loop.decoding import PAGE_SIZE, DecodeLoop
from engine.loop.profiling import measured
from engine.model.block_decoder import BlockDecoder
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
    curve: Curve | None  # milliseconds of a step by its rows; null where nothing is to be drafted
    foresight: Foresight = Foresight()  # noqa: RUF009 -- frozen, and nothing in it

    def loop(
        self,
        config: EngineConfig,
        *,
        engine_epoch: str = "local",
        cost: StepCost | None = None,
        on_failure: Callable[[str, Exception], None] | None = None,
    ) -> DecodeLoop:
        """Return a new loop, with nothing cached, on this model."""
        head = self.foresight.head if config.draft else None
        return DecodeLoop(
            self.decoder if head is None else TappedDecoder(self.decoder, head),
            self.tokenizer,
            self.limits,
            config,
            foresight=self.foresight,
            engine_epoch=engine_epoch,
            cost=cost or (StepCost(self.curve) if self.curve else None),
            on_failure=on_failure,
            experts=self.decoder.experts,
        )


def open_model(path: Path | str, config: EngineConfig) -> OpenModel:
    """Load a `.dfm` as `config` says; its name is the file's.

    Where `config` drafts nothing, neither is a step's cost measured nor anything learned loaded.
    Raises InvalidModelFile, UnsupportedModel, InvalidConfig.
    """
    path = Path(path)
    tokenizer = Tokenizer.from_dfm(path)
    mixture = read_header(path).model.architecture.experts is not None
    check_config(config, tokenizer.context_length, experts=mixture)
    decoder = load_decoder(
        path,
        backend=config.backend,
        device=config.device,
        threads=config.threads,
        kv_tokens=config.kv_tokens,
        rope_scaling_factor=config.rope_scaling_factor,
        expert_cache_size=config.experts_kept,
    )
    curve = (
        measured(decoder, config.max_step_rows, tokenizer.context_length, tokenizer.vocab_size)
        if config.draft
        else None
    )
    if decoder.experts is not None:
        decoder.experts.forget()  # which ones the rows of a measurement went to
    return OpenModel(
        decoder,
        tokenizer,
        Limits(
            tokenizer.vocab_size,
            tokenizer.context_length,
            kv_tokens=config.kv_tokens // PAGE_SIZE * PAGE_SIZE,  # whole pages
            grammars=Grammars(tokenizer),
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
            device_uuid=decoder.device_uuid,
        ),
        curve,
        Foresight() if curve is None else open_foresight(path, config, decoder, curve),
    )


def open_foresight(
    path: Path, config: EngineConfig, decoder: AnyDecoder, curve: Curve
) -> Foresight:
    """Open the learned sources that `config` names for a loaded model with this v(n).

    Where it leaves the choice to us, a block head that takes too much of a step is left out.
    """
    file = ModelFile.open(path)
    head = chosen_head(config.draft_head, file.header.model)
    if head is None:
        return Foresight()
    found = foresight_of(head, file, decoder)
    return found.affordable(curve[0][1]) if config.draft_head == AUTO else found


def foresight_of(head: HeadFile, file: ModelFile, decoder: AnyDecoder) -> Foresight:
    """Prepare a head file's sources for a loaded model."""
    block = None
    if head.block is not None and head.card.shape is not None:
        runtime = decoder.runtime if isinstance(decoder, BlockDecoder) else None
        slots = decoder.storage.slots
        block = open_block_head(
            *(head.card.shape, head.block, file, slots), runtime=runtime, beside=decoder.storage
        )
    return Foresight(head.phrases, block)
