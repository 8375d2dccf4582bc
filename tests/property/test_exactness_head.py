"""Learned sources change no bit either: an untrained head and phrases, on both backends.

The head guesses wildly, the phrases are the model's own: wrong and right drafts both occur.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from block_models import write_block_dfm
from draft_heads import random_head
from engine_schedules import (
    Heard,
    NoCost,
    adopted_tokens,
    assert_same,
    live_through,
    narrowed,
    random_schedule,
    run_alone,
)
from engine_sequences import request as a_request
from tiny_models import TinyShape

from engine.config import EngineConfig
from engine.dfm.container import ModelFile
from engine.draft.foresight import Foresight
from engine.draft.head.serving import TappedDecoder
from engine.draft.proposals import Source
from engine.draft.reliability import Reliability
from engine.loop.decoding import PAGE_SIZE, DecodeLoop
from engine.opening import OpenModel, foresight_of, open_model
from engine.requests import GenerationRequest, SamplingParams
from engine.scheduler.admission import Limits
from engine.training.corpus import Sequence
from engine.training.counting import count_phrases

SLOTS = 512
LEAST_PAGES = 5
SCHEDULES = 40  # on each backend


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.dfm"
    return write_block_dfm(path, TinyShape(seed=3, hidden=64, heads=4, kv_heads=2))


@pytest.fixture(scope="module", params=["fp32", "blocks"])
def model(request: pytest.FixtureRequest, path: Path) -> OpenModel:
    config = EngineConfig(backend=request.param, kv_tokens=SLOTS, threads=1, draft_head="none")
    return open_model(path, config)


@pytest.fixture(scope="module")
def requests() -> list[GenerationRequest]:
    random = np.random.default_rng(8)
    system = random.integers(3, 269, 34).tolist()
    return [
        a_request(
            (system + random.integers(3, 269, 9).tolist())[: 20 + index % 24],
            int(random.integers(4, 30)),
            request_id=f"r{index}",
            tenant_id=f"tenant-{index % 2}",
            sampling=SamplingParams(temperature=0.6 * (index % 3), top_k=20, seed=index),
            ignore_eos=True,
        )
        for index in range(20)
    ]


def loop_of(
    model: OpenModel, config: EngineConfig, heard: Heard, foresight: Foresight, slots: int = SLOTS
) -> DecodeLoop:
    decoder: object = model.decoder
    if foresight.head is not None:
        decoder = TappedDecoder(model.decoder, foresight.head)
    return DecodeLoop(
        narrowed(decoder, slots),
        model.tokenizer,
        Limits(model.tokenizer.vocab_size, context_length=slots, kv_tokens=slots),
        config,
        cost=NoCost(),
        foresight=foresight,
        probe=heard.probe,
    )


def test_what_was_learned_changes_no_bit_of_the_logits(
    model: OpenModel, path: Path, requests: list[GenerationRequest]
) -> None:
    plain = EngineConfig(draft=False)
    reference = run_alone(lambda heard: loop_of(model, plain, heard, Foresight()), requests)
    spoken = [
        Sequence(
            np.array([*one.prompt_ids, *reference.tokens[one.request_id]]), len(one.prompt_ids)
        )
        for one in requests[::2]
    ]
    file = random_head(path, vocabulary=32)
    # surer of itself than an untrained head ever is, and of tokens that are often said
    file.block.vectors["final_norm"][:] *= 4.0
    said = Counter(token for tokens in reference.tokens.values() for token in tokens)
    file.block.token_ids[:] = [token for token, _ in said.most_common(32)]
    phrases = count_phrases(spoken * 2, model.tokenizer.vocab_size)
    foresight = replace(foresight_of(file, ModelFile.open(path), model.decoder), phrases=phrases)
    reliability = Reliability()
    accepted = adopted = preempted = 0
    for seed in range(SCHEDULES):
        schedule = random_schedule(np.random.default_rng(seed), requests, LEAST_PAGES)
        config = msgspec.structs.replace(schedule.config, draft=True)
        heard = Heard()
        loop = loop_of(model, config, heard, foresight, schedule.pages * PAGE_SIZE)
        loop.drafter.reliability = reliability
        live_through(schedule, loop, heard)
        assert_same(heard, reference, schedule)
        accepted += loop.counters.accepted_tokens
        preempted += loop.scheduler.preemptions
        adopted += max(0, adopted_tokens(heard, schedule))
    # both sources were asked, were right at times and wrong at times
    for source in (Source.HEAD, Source.PHRASES):
        tables = [reliability.table(origins) for origins in reliability.origins if origins & source]
        right = sum(row.edges * row.observed for table in tables for row in table)
        asked = sum(row.edges for table in tables for row in table)
        assert min(right, asked - right) > 10, (source, right, asked)
    assert accepted > 500
    assert adopted > 100
    assert preempted > 2
