"""On the real model: drafted equals undrafted and together equals alone, bit for bit.

Every prompt is decoded greedily and sampled, alone and undrafted; then all of them at once, with
and without drafts. The raw logits that each token was drawn from must be the same bits.
"""

from __future__ import annotations

import pytest
from engine_real_model import real_model_path, real_prompts
from engine_schedules import Heard, NoCost, loop_on, run_alone

from engine.config import EngineConfig
from engine.opening import OpenModel, open_model
from engine.requests import GenerationRequest, SamplingParams

NEW_TOKENS = 7
SAMPLED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=11)


@pytest.fixture(scope="module")
def model() -> OpenModel:
    return open_model(real_model_path(), EngineConfig())


@pytest.fixture(scope="module")
def requests(model: OpenModel) -> list[GenerationRequest]:
    """All prompts twice, greedy and sampled."""
    return [
        GenerationRequest(
            request_id=f"{prompt.id}/{sampling.temperature}",
            tenant_id="tenant",
            prompt_ids=tuple(prompt.encoded(model.tokenizer)),
            max_tokens=NEW_TOKENS,
            sampling=sampling,
        )
        for prompt in real_prompts()
        for sampling in (SamplingParams(), SAMPLED)
    ]


@pytest.fixture(scope="module")
def alone(model: OpenModel, requests: list[GenerationRequest]) -> Heard:
    config = EngineConfig(draft=False)
    vocab_size = model.tokenizer.vocab_size
    return run_alone(
        lambda heard: loop_on(model.decoder, model.tokenizer, vocab_size, config, heard), requests
    )


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(draft=False, max_running=64),
        EngineConfig(draft=True, max_running=16, verifier_batch_size=16),
        EngineConfig(draft=True, rollback="restart", node_budget=12, max_running=6),
    ],
    ids=["together", "together and drafted", "drafted with other trees"],
)
def test_company_and_drafts_change_no_bit(
    model: OpenModel, requests: list[GenerationRequest], alone: Heard, config: EngineConfig
) -> None:
    assert len(requests) >= 2 * 50
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
    assert (counters.accepted_tokens > 10) == config.draft
    assert (counters.drafted_nodes > counters.accepted_tokens) == config.draft
