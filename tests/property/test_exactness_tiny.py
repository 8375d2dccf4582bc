"""Neither drafting nor company changes a bit of a real decoder's logits, on tiny random models."""

from __future__ import annotations

import json

import numpy as np
import pytest
from block_models import write_block_dfm
from engine_schedules import (
    Heard,
    adopted_tokens,
    assert_same,
    live_through,
    loop_on,
    random_schedule,
    run_alone,
)
from engine_sequences import request as a_request
from mixtures import MIXTRAL
from tiny_models import TinyShape, write_tiny_dfm

from engine.config import EngineConfig
from engine.loop.decoding import PAGE_SIZE
from engine.opening import OpenModel, open_model
from engine.records import FinishReason
from engine.requests import GenerationRequest, SamplingParams

SLOTS = 512
LEAST_PAGES = 6  # the longest request alone
SCHEDULES = {"tied": 250, "untied": 250, "experts": 60}
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "the": {"enum": ["and", "then", "on"]},
            "counts": {"type": "array", "items": {"type": "boolean"}, "maxItems": 4},
        },
        "required": ["the", "counts"],
        "additionalProperties": False,
    }
)


@pytest.fixture(scope="module", params=SCHEDULES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(kind: str, tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    """With tied embeddings it repeats itself, so drafts are right; without, it never does.

    Of the experts' one, in blocks, fewer are at hand than a step of one row uses.
    """
    path = tmp_path_factory.mktemp("models") / "tiny.dfm"
    if kind == "experts":
        write_block_dfm(path, MIXTRAL)
        return open_model(path, EngineConfig(kv_tokens=SLOTS, threads=1, expert_cache_size=3))
    write_tiny_dfm(path, TinyShape(seed=3, tied_embeddings=kind == "tied"))
    return open_model(path, EngineConfig(kv_tokens=SLOTS, threads=1))


@pytest.fixture(scope="module")
def requests() -> list[GenerationRequest]:
    """Prompts that share beginnings or nothing; greedy and sampled; with ends in them."""
    random = np.random.default_rng(8)
    sampled = [
        SamplingParams(temperature=0.5, seed=1),
        SamplingParams(temperature=1.0, top_k=12, seed=2),
        SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.2, seed=3),
    ]
    system = random.integers(3, 269, 34).tolist()
    found = []
    for index in range(32):
        own = random.integers(3, 269, int(random.integers(1, 24))).tolist()
        prompt = (system + own)[:60] if index % 3 == 0 else own
        found.append(
            a_request(
                prompt,
                min(int(random.integers(4, 36)), LEAST_PAGES * PAGE_SIZE - len(prompt)),
                request_id=f"r{index}",
                tenant_id=f"tenant-{index % 2}",
                sampling=SamplingParams() if index % 2 == 0 else sampled[index % 3],
                stop=(("e", "t", "A", "~~") if index % 5 == 0 else ()),
                draft=index % 11 != 0,
                ignore_eos=index % 4 != 0,
            )
        )
    for index in range(6):  # alike, so that the scaffolding of one is drafted for the next
        prompt = random.integers(3, 269, 4).tolist()
        sampling = sampled[index % 3] if index % 2 else SamplingParams()
        found.append(
            a_request(prompt, 80, request_id=f"json{index}", sampling=sampling, json_schema=SCHEMA)
        )
    return found + [
        a_request(system, 30 - 4 * index, request_id=f"same{index}", ignore_eos=True)
        for index in range(4)
    ]


@pytest.fixture(scope="module")
def reference(model: OpenModel, requests: list[GenerationRequest]) -> Heard:
    plain = EngineConfig(draft=False)
    vocab_size = model.tokenizer.vocab_size
    return run_alone(
        lambda heard: loop_on(
            model.decoder,
            model.tokenizer,
            vocab_size,
            plain,
            heard,
            grammars=model.limits.grammars,
        ),
        requests,
    )


def test_hundreds_of_random_lives_change_no_bit_of_the_logits(
    kind: str, model: OpenModel, requests: list[GenerationRequest], reference: Heard
) -> None:
    """Given arrivals, cancellations, preemptions, tree shapes, chunking, policies, tenants."""
    assert model.decoder.batch_invariant
    accepted = cached = recomputed = adopted = preempted = 0
    for seed in range(SCHEDULES[kind]):
        schedule = random_schedule(np.random.default_rng(seed), requests, LEAST_PAGES)
        heard = Heard()
        loop = loop_on(
            model.decoder,
            model.tokenizer,
            model.tokenizer.vocab_size,
            schedule.config,
            heard,
            schedule.pages * PAGE_SIZE,
            schedule.cost,
            model.limits.grammars,
        )
        live_through(schedule, loop, heard)
        assert_same(heard, reference, schedule)
        accepted += loop.counters.accepted_tokens
        cached += loop.counters.cached_tokens
        works = [part.work for step in heard.steps for part in step.work]
        recomputed += sum(work.recomputed_tokens for work in works)
        preempted += loop.scheduler.preemptions
        adopted += max(0, adopted_tokens(heard, schedule))
    # The schedules must have been interesting, or all this shows nothing.
    assert accepted > {"tied": 1500, "untied": 50, "experts": 300}[kind]
    assert min(adopted, recomputed) > SCHEDULES[kind] * 3 // 5, (adopted, recomputed)
    assert min(cached, preempted) > SCHEDULES[kind] // 50, (cached, preempted)
    if model.decoder.experts is not None:
        counters = model.decoder.experts.counters
        assert 0 < counters.hits < counters.lookups
    answer = json.loads(reference.text["json0"])
    assert reference.finishes["json0"].reason is FinishReason.STOP
    assert answer["the"] in {"and", "then", "on"}
    assert FinishReason.LENGTH in {finish.reason for finish in reference.finishes.values()}
