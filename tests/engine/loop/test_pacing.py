"""Requests that say the same at once draft for each other, and nobody waits for long."""

from __future__ import annotations

from pathlib import Path

import msgspec
from engine_schedules import Heard, loop_on
from engine_sequences import request
from engine_toy import VOCAB, ToyDecoder, ToyVocabulary
from tiny_models import TinyShape, write_tiny_dfm

from engine.config import EngineConfig
from engine.loop.decoding import DecodeLoop
from engine.opening import open_model
from engine.requests import SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
CONFIG = EngineConfig(single_flight=False)
USERS = 16


def loop_of(heard: Heard, **changes: object) -> DecodeLoop:
    config = msgspec.structs.replace(CONFIG, **changes)
    return loop_on(ToyDecoder(1024), ToyVocabulary(), VOCAB, config, heard)


def run(loop: DecodeLoop, heard: Heard) -> None:
    while loop.busy:
        heard.take(loop.step())
    loop.check()


def test_sixteen_sampled_answers_that_agree_are_mostly_drawn_from_the_cache(
    tmp_path: Path,
) -> None:
    """Given one question, one seed, and no single flight to answer it once."""
    path = write_tiny_dfm(tmp_path / "tiny.dfm", TinyShape(seed=3, tied_embeddings=False))
    model = open_model(path, EngineConfig(kv_tokens=2048, threads=1))
    heard = Heard()
    vocab_size = model.tokenizer.vocab_size
    loop = loop_on(model.decoder, model.tokenizer, vocab_size, CONFIG, heard, 2048)
    sampling = SamplingParams(temperature=0.7, seed=3)
    for index in range(USERS):
        loop.submit(request(PROMPT, 40, request_id=str(index), ignore_eos=True, sampling=sampling))
    run(loop, heard)
    assert len({tuple(tokens) for tokens in heard.tokens.values()}) == 1
    caches = loop.stats().caches
    assert caches.followed_blocks == 0
    assert caches.block_reuse_rate is not None
    assert caches.block_reuse_rate >= 0.85, caches
    # All but the first found the prompt computed, to its last token.
    assert caches.cached_prompt_tokens == (USERS - 1) * (len(PROMPT) - 1)


def test_answers_that_differ_wait_for_each_other_once_at_most() -> None:
    heard, patient = Heard(), Heard()
    for wanted, changes in ((heard, {}), (patient, {"draft_cache_tokens": 0})):
        loop = loop_of(wanted, **changes)
        for index in range(USERS):
            sampling = SamplingParams(temperature=3.0, seed=index)
            loop.submit(
                request(PROMPT, 20, request_id=str(index), ignore_eos=True, sampling=sampling)
            )
        run(loop, wanted)
    assert heard.tokens == patient.tokens
    assert len({tuple(tokens) for tokens in heard.tokens.values()}) == USERS
    assert len(heard.steps) <= len(patient.steps) + 20


def test_nobody_waits_for_another_tenant() -> None:
    heard = Heard()
    loop = loop_of(heard)
    for tenant in "abc":
        loop.submit(request(PROMPT, 9, request_id=tenant, tenant_id=tenant, ignore_eos=True))
    run(loop, heard)
    lone = Heard()
    loop = loop_of(lone)
    loop.submit(request(PROMPT, 9, request_id="a", ignore_eos=True))
    run(loop, lone)
    assert len(heard.steps) == len(lone.steps)
    assert loop.stats().caches.cached_blocks == 0


def test_what_is_public_is_shared_by_those_who_chose_it_and_nobody_else() -> None:
    heard = Heard()
    loop = loop_of(heard)
    asked = [("first", "a", "public"), ("second", "b", "public"), ("third", "c", "tenant")]
    for name, tenant, scope in asked:
        loop.submit(
            request(
                PROMPT,
                30,
                request_id=name,
                tenant_id=tenant,
                draft_scope=scope,
                ignore_eos=True,
            )
        )
        run(loop, heard)
    cached = {name: 0 for name, _, _ in asked}
    for block in (block for step in heard.steps for block in step.blocks):
        cached[block.request_id] += block.cached_tokens
    assert cached["first"] == cached["third"] == 0
    assert cached["second"] > 20
    assert heard.found == {"first": 0, "second": 0, "third": 0}
