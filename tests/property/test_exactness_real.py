"""On the real model: drafted equals undrafted and together equals alone, bit for bit.

The prompts are decoded alone and undrafted, every other one greedily and the rest sampled; then all
of them at once, with and without drafts. The raw logits that each token was drawn from must be the
same bits.

On weights in blocks every prompt is decoded; in single precision, which is slow, every fifth.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from engine_schedules import Heard, NoCost, loop_on, run_alone
from real_model import real_dfm
from real_prompts import real_prompts

from engine.config import EngineConfig
from engine.opening import OpenModel, open_model
from engine.prompts import Prompt
from engine.requests import GenerationRequest, SamplingParams

SAMPLINGS = (SamplingParams(), SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=11))
PROMPTS = real_prompts()


@dataclass(frozen=True)
class Case:
    """A backend, and how much of the work it can do in a test's time."""

    backend: str
    prompts: Sequence[Prompt]
    new_tokens: int


CASES = [Case("blocks", PROMPTS, 24), Case("fp32", PROMPTS[::5], 10)]


@dataclass(frozen=True)
class Standard:
    """A loaded model, the requests, and what each is answered alone and undrafted."""

    model: OpenModel
    requests: list[GenerationRequest]
    alone: Heard


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.backend)
def standard(request: pytest.FixtureRequest) -> Standard:
    case: Case = request.param
    # One thread: several would wait for each other's turn on processors that other tests use, too.
    model = open_model(real_dfm(), EngineConfig(backend=case.backend, threads=1))
    requests = [
        GenerationRequest(
            request_id=f"{prompt.id}/{sampling.temperature}",
            tenant_id="tenant",
            prompt_ids=tuple(prompt.encoded(model.tokenizer)),
            max_tokens=case.new_tokens,
            sampling=sampling,
        )
        for prompt, sampling in zip(case.prompts, itertools.cycle(SAMPLINGS), strict=False)
    ]
    config = EngineConfig(draft=False)
    vocab_size = model.tokenizer.vocab_size
    alone = run_alone(
        lambda heard: loop_on(model.decoder, model.tokenizer, vocab_size, config, heard), requests
    )
    return Standard(model, requests, alone)


def test_there_are_prompts_enough() -> None:
    assert len(PROMPTS) >= 50
    assert len({prompt.id for prompt in PROMPTS}) == len(PROMPTS)


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(draft=False, max_running=64),
        EngineConfig(draft=True, max_running=16, verifier_batch_size=16),
        EngineConfig(draft=True, rollback="restart", node_budget=12, max_running=6),
    ],
    ids=["together", "together and drafted", "drafted with other trees"],
)
def test_company_and_drafts_change_no_bit(standard: Standard, config: EngineConfig) -> None:
    model, requests, alone = standard.model, standard.requests, standard.alone
    assert model.decoder.batch_invariant
    heard = Heard()
    loop = loop_on(
        model.decoder,
        model.tokenizer,
        model.tokenizer.vocab_size,
        config,
        heard,
        cost=NoCost(),  # so many at once would hardly draft otherwise
    )
    for request in requests:
        loop.submit(request)
    while loop.busy:
        heard.take(loop.step())
    loop.pool.check()
    assert loop.pool.used == 0
    for request in requests:
        name = request.request_id
        assert heard.tokens[name] == alone.tokens[name]
        assert heard.scores[name] == alone.scores[name]
        assert heard.finishes[name].reason == alone.finishes[name].reason
    assert heard.logits == alone.logits
    # Drafts must have been right and wrong, or they were not shown to be harmless.
    counters = loop.counters
    assert (counters.accepted_tokens > 5) == config.draft
    assert (counters.drafted_nodes > counters.accepted_tokens) == config.draft
