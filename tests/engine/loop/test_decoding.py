"""The decode loop's edges, on the toy model: ends, failures, work, processors."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
import torch
from engine_schedules import Heard, NoCost, loop_on
from engine_sequences import request
from engine_toy import VOCAB, ToyDecoder, ToyVocabulary, toy_logits
from torch import Tensor

from engine.cache.pages import PageLeak
from engine.config import EngineConfig
from engine.errors import EngineOverloaded, InvalidRequest
from engine.loop.cost import StepCost
from engine.loop.decoding import DecodeLoop
from engine.processors import DFlashLogitsProcessor
from engine.records import FinishReason
from engine.requests import SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@dataclass
class Rig:
    """A loop on a toy, and what was heard of it."""

    decoder: ToyDecoder = field(default_factory=ToyDecoder)
    heard: Heard = field(default_factory=Heard)
    failures: list[Exception] = field(default_factory=list)
    cost: StepCost | None = None

    def loop(self, slots: int | None = None, **changes: object) -> DecodeLoop:
        config = msgspec.structs.replace(EngineConfig(single_flight=False), **changes)
        loop = loop_on(self.decoder, ToyVocabulary(), VOCAB, config, self.heard, slots, self.cost)
        loop._on_failure = lambda _, error: self.failures.append(error)
        return loop

    def finish(self, loop: DecodeLoop) -> Heard:
        while loop.busy:
            self.heard.take(loop.step())
        loop.pool.check()
        assert loop.pool.used == 0
        return self.heard


@pytest.fixture
def rig() -> Rig:
    return Rig()


def said(rig: Rig, **changes: object) -> list[int]:
    """What the toy says after the prompt, greedily and undrafted."""
    fresh = Rig()
    loop = fresh.loop(draft=False)
    loop.submit(request(PROMPT, 30, request_id="x", ignore_eos=True, **changes))
    return fresh.finish(loop).tokens["x"]


def test_an_idle_loop_has_nothing_to_say(rig: Rig) -> None:
    assert rig.loop().step() is None


def test_a_cancelled_request_says_so_at_the_next_step_and_nothing_more(rig: Rig) -> None:
    loop = rig.loop()
    loop.submit(request(PROMPT, 30, request_id="a"))
    rig.heard.take(loop.step())
    loop.cancel("a")
    loop.cancel("nobody")
    rig.finish(loop)
    finish = rig.heard.finishes["a"]
    assert (finish.reason, finish.block_count, finish.token_count) == (FinishReason.CANCELLED, 1, 1)


def test_a_request_cancelled_while_it_waits_never_runs(rig: Rig) -> None:
    loop = rig.loop(max_running=1)
    loop.submit(request(PROMPT, 5, request_id="first", ignore_eos=True))
    loop.submit(request(PROMPT, 5, request_id="second"))
    loop.cancel("second")
    rig.finish(loop)
    assert rig.heard.finishes["second"].token_count == 0
    assert rig.heard.finishes["first"].reason is FinishReason.LENGTH


def test_a_request_past_its_deadline_ends_at_the_next_step(rig: Rig) -> None:
    loop = rig.loop()
    loop.submit(request(PROMPT, 30, request_id="late", deadline_ns=time.monotonic_ns()))
    far = time.monotonic_ns() + 10**15
    loop.submit(request(PROMPT, 3, request_id="early", deadline_ns=far, ignore_eos=True))
    rig.finish(loop)
    assert rig.heard.finishes["late"].reason is FinishReason.DEADLINE
    assert rig.heard.finishes["early"].reason is FinishReason.LENGTH


def test_a_failed_forward_pass_ends_everybody_in_it_and_nobody_else(rig: Rig) -> None:
    loop = rig.loop(max_running=2)
    for name in ("a", "b", "c"):
        loop.submit(request(PROMPT, 5, request_id=name, ignore_eos=True))
    rig.heard.take(loop.step())
    rig.decoder.fail_next = RuntimeError("out of memory at 0xdeadbeef")
    rig.finish(loop)
    assert [rig.heard.finishes[name].reason for name in "abc"] == [
        FinishReason.ERROR,
        FinishReason.ERROR,
        FinishReason.LENGTH,
    ]
    assert rig.heard.finishes["a"].detail == "the engine failed in a decoding step"
    assert len(rig.failures) == 2


def test_a_processor_that_raises_ends_its_own_request_only(rig: Rig) -> None:
    def broken(draft_logits: Tensor, verifier_logits: Tensor) -> Tensor:
        raise ValueError("no such grammar")

    loop = rig.loop()
    loop.submit(request(PROMPT, 5, request_id="broken"), [broken])
    loop.submit(request(PROMPT, 5, request_id="fine", ignore_eos=True))
    rig.finish(loop)
    assert rig.heard.finishes["broken"].reason is FinishReason.ERROR
    assert "broken raised ValueError('no such grammar')" in rig.heard.finishes["broken"].detail
    assert rig.heard.finishes["fine"].reason is FinishReason.LENGTH


def test_an_invalid_or_repeated_or_surplus_request_is_refused(rig: Rig) -> None:
    loop = rig.loop(max_running=1, max_waiting=1)
    loop.submit(request(PROMPT, request_id="a"))
    with pytest.raises(InvalidRequest, match="live already"):
        loop.submit(request(PROMPT, request_id="a"))
    with pytest.raises(InvalidRequest):
        loop.submit(request([VOCAB]))
    loop.submit(request(PROMPT))
    with pytest.raises(EngineOverloaded):
        loop.submit(request(PROMPT))


def test_each_row_is_work_of_one_kind(rig: Rig) -> None:
    loop = rig.loop(draft=False, prefill_chunk=5)
    loop.submit(request(PROMPT, 3, request_id="a", ignore_eos=True))
    rig.finish(loop)
    works = [part.work for step in rig.heard.steps for part in step.work]
    assert [work.prefill_tokens for work in works] == [5, 5, 2, 0, 0]
    assert [work.verified_nodes for work in works] == [0, 0, 0, 1, 1]
    assert [work.kv_read_tokens for work in works] == [15, 40, 23, 13, 14]
    assert [len(step.blocks) for step in rig.heard.steps] == [0, 0, 1, 1, 1]


def test_recomputation_after_a_preemption_is_counted_apart_and_emits_no_block(rig: Rig) -> None:
    """Given two requests that start together and cannot both go on."""
    loop = rig.loop(slots=64, draft=False, prefill_chunk=8)
    for name in ("old", "young"):
        loop.submit(request([ord(name[0]) % 20, *PROMPT], 30, request_id=name, ignore_eos=True))
    rig.finish(loop)
    assert loop.scheduler.preemptions > 0
    works = [part for step in rig.heard.steps for part in step.work]
    again = sum(part.work.recomputed_tokens for part in works)
    assert again > 0
    for name in ("old", "young"):
        own = [part.work for part in works if part.request_id == name]
        assert sum(work.prefill_tokens for work in own) == 13
        assert sum(work.verified_nodes for work in own) == 29  # the first token was prefill's
    computing = sum(bool(step.work) for step in rig.heard.steps)
    assert computing > 60 - 30  # steps that recompute emit nothing for whom they recompute


def test_a_drafted_block_counts_what_was_drafted_and_clips_it_at_the_end(rig: Rig) -> None:
    """Given a text that repeats itself with period 2 and ends by length inside a block."""

    class Repeat(DFlashLogitsProcessor):
        wants_token_ids = True

        def __call__(
            self, draft_logits: Tensor, verifier_logits: Tensor, token_ids: Tensor
        ) -> Tensor:
            before = token_ids.shape[1] - verifier_logits.shape[1]
            for at in range(verifier_logits.shape[1]):
                last = token_ids[:, before + at]
                verifier_logits[:, at] = -torch.inf
                verifier_logits[:, at].scatter_(1, (3 - last)[:, None], 0.0)
            return verifier_logits

    loop = rig.loop()
    loop.submit(request([1, 2] * 6, 11, request_id="a"), [Repeat()])
    rig.finish(loop)
    assert rig.heard.tokens["a"] == [1, 2] * 5 + [1]
    blocks = [block for step in rig.heard.steps for block in step.blocks]
    assert [len(block.token_ids) for block in blocks] == [8, 3]
    assert [block.drafted_depth for block in blocks] == [7, 2]
    assert [block.accepted_tokens for block in blocks] == [7, 2]
    assert [block.verified_nodes for block in blocks] == [8, 3]
    counters = loop.counters
    assert (counters.steps, counters.emitted_tokens, counters.accepted_tokens) == (2, 11, 9)
    assert counters.draft_hit_rate == 1.0


def test_raw_statistics_are_taken_before_any_processor_or_temperature(rig: Rig) -> None:
    plain = said(rig)

    def shifted(draft_logits: Tensor, verifier_logits: Tensor) -> Tensor:
        return verifier_logits * 0.5 + 3.0

    loop = rig.loop()
    loop.submit(request(PROMPT, 30, request_id="a", ignore_eos=True), [shifted])
    sampling = SamplingParams(temperature=1e-6, top_k=1)
    loop.submit(request(PROMPT, 30, request_id="b", ignore_eos=True, sampling=sampling))
    loop.submit(request(PROMPT, 30, request_id="c", ignore_eos=True))
    rig.finish(loop)
    assert rig.heard.tokens["a"] == rig.heard.tokens["b"] == rig.heard.tokens["c"] == plain
    assert rig.heard.scores["a"] == rig.heard.scores["b"] == rig.heard.scores["c"]


def test_a_stateful_processor_sees_one_row_a_call_in_order(rig: Rig) -> None:
    class Counting(DFlashLogitsProcessor):
        stateful = True

        def __init__(self) -> None:
            self.shapes: list[tuple[int, ...]] = []

        def __call__(self, draft_logits: Tensor, verifier_logits: Tensor) -> Tensor:
            self.shapes.append(tuple(verifier_logits.shape))
            return verifier_logits

    counting = Counting()
    loop = rig.loop()
    loop.submit(request([1, 2] * 6, 6, request_id="a", ignore_eos=True), [counting])
    rig.finish(loop)
    assert counting.shapes == [(1, 1, VOCAB)] * 6


def test_as_many_nodes_as_full_drafts_hold_are_verified_in_one_step_whosever_they_are(
    rig: Rig,
) -> None:
    loop = rig.loop(verifier_batch_size=2, node_budget=4)
    for index in range(5):
        loop.submit(request([1, 2, 3, 4] * 4 + [index], 20, ignore_eos=True))
        loop.submit(request([1, 2, 3, 4] * 4, 20, ignore_eos=True))
    rig.finish(loop)
    nodes = [sum(block.drafted_nodes for block in step.blocks) for step in rig.heard.steps]
    drafting = [sum(block.drafted_nodes > 0 for block in step.blocks) for step in rig.heard.steps]
    assert max(nodes) == 2 * 3
    assert max(drafting) > 2


def test_without_drafting_nothing_of_the_draft_layer_runs(rig: Rig) -> None:
    loop = rig.loop(draft=False)
    loop.submit(request([1, 2] * 8, 8, request_id="off", ignore_eos=True))
    rig.finish(loop)
    other = Rig()
    drafting = other.loop()
    drafting.submit(request([1, 2] * 8, 8, request_id="off", draft=False, ignore_eos=True))
    other.finish(drafting)
    assert rig.heard.tokens == other.heard.tokens
    for undrafted in (loop, drafting):
        assert undrafted.drafter.shared.tokens == undrafted.drafter.shared.lookups == 0
        assert undrafted.counters.drafted_nodes == 0
        assert undrafted.counters.verified_nodes == 8


def test_drafting_that_is_off_is_a_true_bypass_and_is_tried_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.loop.degradation._WINDOW", 10)
    monkeypatch.setattr("engine.loop.degradation._PROBE", 3)
    monkeypatch.setattr("engine.loop.degradation._PAUSE", 12)
    rig.cost = NoCost()  # tries what is rarely right
    sampling = SamplingParams(temperature=3.0, seed=7)
    loop = rig.loop(degrade_policy="hit_rate")
    loop.submit(request(PROMPT * 4, 200, request_id="a", sampling=sampling, ignore_eos=True))
    states, looked_up = [], []
    while loop.busy:
        rig.heard.take(loop.step())
        states.append(loop.stats().draft_state)
        looked_up.append((loop.drafter.shared.lookups, loop.drafter.shared.tokens))
    off = [index for index in range(1, len(states)) if states[index - 1] == "off"]
    assert set(states) >= {"on", "off", "probing"}
    assert all(looked_up[index] == looked_up[index - 1] for index in off)
    assert all(not rig.heard.steps[index].blocks[0].drafted_nodes for index in off)
    assert loop.stats().draft_alert
    assert loop.stats().window_hit_rate < 0.7
    fresh = Rig()
    plain = fresh.loop(draft=False)
    plain.submit(request(PROMPT * 4, 200, request_id="a", sampling=sampling, ignore_eos=True))
    assert rig.heard.tokens == fresh.finish(plain).tokens


def test_what_was_said_before_is_drafted_even_while_asking_does_not_pay(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = rig.loop()
    for request_id in ("first", "paused", "other"):
        tenant = "another" if request_id == "other" else "t"
        loop.submit(request(PROMPT, 30, request_id=request_id, tenant_id=tenant, ignore_eos=True))
        rig.finish(loop)
        monkeypatch.setattr(loop._cost, "worth_asking", lambda _draws: False)
    steps = Counter(block.request_id for step in rig.heard.steps for block in step.blocks)
    assert steps["paused"] < 15 < steps["other"] == 30
    assert rig.heard.tokens["paused"] == rig.heard.tokens["other"] == said(rig)


def test_stats_are_null_rather_than_zero_before_anything_was_decoded(rig: Rig) -> None:
    loop = rig.loop()
    before = loop.stats()
    assert before.emitted_tokens_per_s is None
    assert before.counters.draft_hit_rate is before.counters.mean_accepted_length is None
    loop.submit(request(PROMPT, 5, ignore_eos=True))
    rig.finish(loop)
    after = loop.stats()
    assert after.emitted_tokens_per_s is not None
    assert after.emitted_tokens_per_s > 0
    assert after.pages_free + after.pages_used + after.pages_cached == 512 // 16


def test_a_page_that_nobody_gives_back_is_found_when_the_loop_is_idle(rig: Rig) -> None:
    loop = rig.loop()
    loop.submit(request(PROMPT, 5))
    rig.finish(loop)
    loop.check()
    loop.pool.take(1)
    with pytest.raises(PageLeak, match="1 pages are used, and nothing runs"):
        loop.check()


def test_an_abandoned_loop_gives_everybody_a_finish_record(rig: Rig) -> None:
    loop = rig.loop(max_running=1)
    loop.submit(request(PROMPT, request_id="a"))
    loop.submit(request(PROMPT, request_id="b"))
    rig.heard.take(loop.step())
    rig.heard.take(loop.abandon(FinishReason.ERROR, "lost"))
    assert {name: finish.detail for name, finish in rig.heard.finishes.items()} == {
        "a": "lost",
        "b": "lost",
    }
    assert not loop.busy


def test_sampled_text_follows_the_verifiers_distribution_drafted_or_not() -> None:
    """Given 3,000 seeds: the first two tokens after one prompt against their exact law."""
    prompt, params = [1, 2, 3, 1, 2, 3, 1, 2], SamplingParams(temperature=2.5)

    def law(context: list[int]) -> np.ndarray:
        weights = np.exp(toy_logits(context).astype(np.float64) / params.temperature)
        return weights / weights.sum()

    expected = np.zeros((VOCAB, VOCAB))
    first = law(prompt)
    for token in range(VOCAB):
        expected[token] = first[token] * law([*prompt, token])
    rig, count = Rig(), 3000
    loop = rig.loop(max_running=1, max_waiting=count)  # alone, a draft pays sooner
    for seed in range(count):
        sampling = SamplingParams(temperature=2.5, seed=seed)
        loop.submit(request(prompt, 2, sampling=sampling, request_id=str(seed), ignore_eos=True))
    rig.finish(loop)
    assert loop.counters.accepted_tokens > 200
    found = np.zeros((VOCAB, VOCAB))
    for tokens in rig.heard.tokens.values():
        found[tokens[0], tokens[1]] += 1
    likely = expected * count >= 5
    observed = np.append(found[likely], found[~likely].sum())
    target = np.append(expected[likely], expected[~likely].sum()) * count
    chi_square, freedom = ((observed - target) ** 2 / target).sum(), likely.sum()
    assert chi_square < freedom + 3.5 * np.sqrt(2 * freedom)  # about 99.9 %; seeds are fixed
