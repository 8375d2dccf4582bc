"""Neither drafting nor company changes a token: on a toy whose logits betray any wrong key.

The toy's logits are a hash of exactly the tokens a row sees, so one wrong slot, one key out of
order, one node that sees its sibling, changes bits.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from engine_schedules import (
    Heard,
    adopted_tokens,
    assert_same,
    live_through,
    loop_on,
    random_schedule,
    run_alone,
)
from engine_sequences import request
from engine_toy import VOCAB, ToyDecoder, ToyVocabulary

from engine.config import EngineConfig
from engine.loop.decoding import PAGE_SIZE
from engine.records import FinishReason
from engine.requests import GenerationRequest, SamplingParams

SLOTS = 512
LEAST_PAGES = 6  # the longest request alone


def pool_of_requests() -> list[GenerationRequest]:
    """Greedy and sampled, long and short, alike and unlike, with and without ends in them."""
    random = np.random.default_rng(20)
    greedy = SamplingParams()
    sampled = [
        SamplingParams(temperature=0.7, seed=1),
        SamplingParams(temperature=1.3, top_k=8, seed=2),
        SamplingParams(temperature=0.9, top_p=0.8, seed=3),
        SamplingParams(temperature=1.0, min_p=0.1, seed=4),
    ]
    penalised = [
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(temperature=0.8, frequency_penalty=0.4, presence_penalty=-0.6, seed=5),
        SamplingParams(temperature=1.0, repetition_penalty=0.8, logit_bias=((3, -4.0),), seed=6),
    ]
    system = random.integers(1, VOCAB, 34).tolist()
    requests = []
    for index in range(48):
        own = random.integers(1, VOCAB, int(random.integers(1, 25))).tolist()
        prompt = [*system, *own] if index % 3 == 0 else own
        requests.append(
            request(
                prompt,
                min(int(random.integers(1, 40)), LEAST_PAGES * PAGE_SIZE - len(prompt)),
                request_id=f"r{index}",
                tenant_id=f"tenant-{index % 2}",
                sampling=greedy if index % 2 == 0 else sampled[index % 4],
                stop=(("ab", "cde", "q") if index % 5 == 0 else ()),
                draft=index % 11 != 0,
                ignore_eos=index % 4 == 0,
                top_logprobs=3 if index % 6 == 0 else 0,
            )
        )
        if index % 7 == 3:
            requests[-1] = msgspec.structs.replace(requests[-1], sampling=penalised[index % 3])
    # The same question asked again and again: the shared cache has much to say.
    return requests + [
        request(
            system,
            (28, 28, 9, 20, 28, 28)[index],
            request_id=f"same{index}",
            ignore_eos=index != 1,
            stop=("ab", "q") if index == 3 else (),
            draft_scope="public" if index > 3 else "tenant",
        )
        for index in range(6)
    ]


@pytest.fixture(scope="module")
def requests() -> list[GenerationRequest]:
    return pool_of_requests()


@pytest.fixture(scope="module")
def reference(requests: list[GenerationRequest]) -> Heard:
    plain = EngineConfig(draft=False)
    decoder = ToyDecoder(SLOTS)
    return run_alone(lambda heard: loop_on(decoder, ToyVocabulary(), VOCAB, plain, heard), requests)


def test_a_thousand_random_lives_change_no_bit(
    requests: list[GenerationRequest], reference: Heard
) -> None:
    """Given arrivals, cancellations, preemptions, tree shapes, chunking, policies, tenants."""
    decoder = ToyDecoder(SLOTS)  # one storage for all: stale keys lie everywhere
    accepted = cached = recomputed = adopted = preempted = 0
    for seed in range(1000):
        random = np.random.default_rng(seed)
        schedule = random_schedule(random, requests, LEAST_PAGES)
        heard = Heard()
        loop = loop_on(
            decoder, ToyVocabulary(), VOCAB, schedule.config, heard, schedule.pages * PAGE_SIZE
        )
        live_through(schedule, loop, heard)
        assert_same(heard, reference, schedule)
        accepted += loop.counters.accepted_tokens
        cached += loop.counters.cached_tokens
        works = [work.work for step in heard.steps for work in step.work]
        recomputed += sum(work.recomputed_tokens for work in works)
        preempted += loop.scheduler.preemptions
        adopted += max(0, adopted_tokens(heard, schedule))
    # The schedules must have been interesting, or all this shows nothing.
    assert accepted > 5000
    assert min(cached, adopted, recomputed) > 500, (cached, adopted, recomputed)
    assert preempted > 100


def test_the_references_end_in_every_way(reference: Heard) -> None:
    reasons = {finish.reason for finish in reference.finishes.values()}
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}
