"""Identical requests are computed once, and each still gets what it would have got alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import pytest
from engine_schedules import FixedCost, Heard, loop_on
from engine_sequences import request
from engine_toy import VOCAB, ToyDecoder, ToyVocabulary
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.errors import EngineOverloaded
from engine.loop.decoding import DecodeLoop
from engine.loop.flights import identity
from engine.loop.tally import counted
from engine.records import FinishReason
from engine.requests import GenerationRequest, SamplingParams

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=0.9, seed=5)


def loop_of(heard: Heard, decoder: ToyDecoder | None = None, **changes: object) -> DecodeLoop:
    config = msgspec.structs.replace(EngineConfig(), **changes)
    return loop_on(decoder or ToyDecoder(), ToyVocabulary(), VOCAB, config, heard)


def run(loop: DecodeLoop, heard: Heard) -> Heard:
    while loop.busy:
        heard.take(loop.step())
    loop.check()
    return heard


def rows(heard: Heard) -> int:
    """All rows computed."""
    works = [part.work for step in heard.steps for part in step.work]
    return sum(w.prefill_tokens + w.recomputed_tokens + w.verified_nodes for w in works)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled, one seed"])
def test_sixteen_that_ask_the_same_cost_as_one(sampling: SamplingParams) -> None:
    alone, together = Heard(), Heard()
    loop = loop_of(alone)
    loop.submit(request(PROMPT, 40, request_id="0", ignore_eos=True, sampling=sampling))
    run(loop, alone)
    loop = loop_of(together)
    for index in range(16):
        loop.submit(request(PROMPT, 40, request_id=str(index), ignore_eos=True, sampling=sampling))
    assert loop.stats().following == 15
    run(loop, together)
    assert rows(together) == rows(alone)
    assert len(together.steps) == len(alone.steps)
    assert [together.tokens[str(index)] for index in range(16)] == [alone.tokens["0"]] * 16
    assert [together.scores[str(index)] for index in range(16)] == [alone.scores["0"]] * 16
    assert [together.found[str(index)] for index in range(16)] == [0] + [len(PROMPT)] * 15
    assert loop.counters == counted(block for step in alone.steps for block in step.blocks)
    caches = loop.stats().caches
    assert caches.followed_blocks * 16 == caches.blocks * 15
    assert caches.block_reuse_rate is not None
    assert caches.block_reuse_rate >= 0.85
    for step in together.steps:
        (part,) = step.work
        assert (part.request_id, len(part.shared_with)) == ("0", 15)


def test_who_may_not_share() -> None:
    first = request(PROMPT, 8)
    assert identity(first, ()) == identity(request(PROMPT, 3, stop=("a",), ignore_eos=True), ())
    seeded = SamplingParams(seed=9)  # which a greedy request never asks for
    assert identity(first, ()) == identity(request(PROMPT, sampling=seeded), ())
    for other in (
        request([*PROMPT, 1]),
        request(PROMPT, tenant_id="another"),
        request(PROMPT, draft=False),
        request(PROMPT, draft_scope="public"),
        request(PROMPT, sampling=SAMPLED),
        request(PROMPT, sampling=msgspec.structs.replace(SAMPLED, seed=6)),
        request(PROMPT, sampling=SamplingParams(top_k=3)),
    ):
        assert identity(other, ()) != identity(first, ())
    assert identity(first, [lambda _draft, verifier: verifier]) is None


def test_riders_count_as_live() -> None:
    loop = loop_of(Heard(), max_running=2, max_waiting=1)
    for _ in range(3):
        loop.submit(request(PROMPT))
    with pytest.raises(EngineOverloaded):
        loop.submit(request(PROMPT))


def test_a_failure_is_told_to_every_rider() -> None:
    decoder, heard, failed = ToyDecoder(), Heard(), []
    loop = loop_of(heard, decoder)
    loop._on_failure = lambda request_id, _: failed.append(request_id)
    for name in "abc":
        loop.submit(request(PROMPT, 9, request_id=name, ignore_eos=True))
    heard.take(loop.step())
    decoder.fail_next = RuntimeError("lost")
    run(loop, heard)
    assert failed == ["a", "b", "c"]
    assert {finish.reason for finish in heard.finishes.values()} == {FinishReason.ERROR}
    assert {finish.token_count for finish in heard.finishes.values()} == {1}


def test_a_late_rider_hears_at_once_what_was_said_before_it_came() -> None:
    heard = Heard()
    loop = loop_of(heard, draft=False)
    loop.submit(request(PROMPT, 12, request_id="early", ignore_eos=True))
    for _ in range(5):
        heard.take(loop.step())
    loop.submit(request(PROMPT, 12, request_id="late", ignore_eos=True))
    loop.submit(request(PROMPT, 3, request_id="short", ignore_eos=True))
    heard.take(loop.step())
    assert len(heard.tokens["late"]) == len(heard.tokens["early"]) == 6
    assert heard.finishes["short"].token_count == 3
    # The short one had no part in the step's work, and says so rather than nothing.
    assert [(part.request_id, part.work.verified_nodes) for part in heard.steps[-1].work] == [
        ("short", 0),
        ("early", 1),
    ]
    run(loop, heard)
    assert heard.tokens["late"] == heard.tokens["early"]


@dataclass(frozen=True)
class Visit:
    """One request: when it comes, what it wants, when it is cancelled."""

    at: int
    max_tokens: int
    stop: tuple[str, ...]
    ignore_eos: bool
    question: int
    cancelled_at: int | None

    def request(self, name: str) -> GenerationRequest:
        return request(
            PROMPT[self.question :],
            self.max_tokens,
            request_id=name,
            stop=self.stop,
            ignore_eos=self.ignore_eos,
            sampling=SamplingParams(temperature=1.2, seed=7) if self.question else GREEDY,
        )


visits = st.builds(
    Visit,
    at=st.integers(0, 12),
    max_tokens=st.integers(1, 24),
    stop=st.sampled_from([(), ("a",), ("ef", "q"), ("xyz",), ("j",)]),
    ignore_eos=st.booleans(),
    question=st.sampled_from([0, 0, 0, 1]),
    cancelled_at=st.none() | st.integers(0, 20),
)
_alone: dict[Visit, Heard] = {}


def solo(visit: Visit) -> Heard:
    """What a visit gets that has the engine to itself, undrafted."""
    key = replace(visit, at=0, cancelled_at=None)
    if key not in _alone:
        heard = Heard()
        loop = loop_of(heard, draft=False, single_flight=False)
        loop.submit(key.request("x"))
        _alone[key] = run(loop, heard)
    return _alone[key]


@given(st.lists(visits, min_size=1, max_size=8), st.booleans(), st.sampled_from([8, 4, 3]))
@settings(max_examples=150)
def test_whoever_rides_gets_what_it_would_have_got_alone(
    guests: list[Visit], draft: bool, pages: int
) -> None:
    """Given leaders and followers that come late, stop early, are cancelled, are preempted."""
    heard = Heard()
    config = EngineConfig(draft=draft, prefill_chunk=7, max_running=3)
    loop = loop_on(
        ToyDecoder(), ToyVocabulary(), VOCAB, config, heard, pages * 16, cost=FixedCost()
    )
    step = 0
    while step <= 20 or loop.busy:
        for index, guest in enumerate(guests):
            if guest.at == step:
                loop.submit(guest.request(str(index)))
            if guest.cancelled_at == step:
                loop.cancel(str(index))
        if loop.busy:
            heard.take(loop.step())
            loop.pool.check()
        step += 1
    loop.check()
    for index, guest in enumerate(guests):
        name, expected = str(index), solo(guest)
        finish, tokens = heard.finishes[name], heard.tokens.get(name, [])
        whole = expected.tokens["x"]
        if finish.reason is FinishReason.CANCELLED:
            assert tokens == whole[: len(tokens)]
        else:
            assert (finish.reason, tokens) == (expected.finishes["x"].reason, whole)
            assert heard.text[name] == expected.text["x"]
        assert heard.scores.get(name, []) == expected.scores["x"][: len(tokens)]


def test_a_follower_that_wants_more_is_drafted_for_when_its_leader_is_gone() -> None:
    heard = Heard()
    loop = loop_of(heard)
    loop.submit(request([1, 2, 3] * 6, 2, request_id="brief", ignore_eos=True))
    loop.submit(request([1, 2, 3] * 6, 40, request_id="long", ignore_eos=True))
    run(loop, heard)
    assert (len(heard.tokens["brief"]), len(heard.tokens["long"])) == (2, 40)
    assert loop.counters.accepted_tokens > 5
