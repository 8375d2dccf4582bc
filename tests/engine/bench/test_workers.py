"""The process of an arm: what it is asked and answers, and how its death is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench_runs import ask
from tiny_models import write_tiny_dfm

from engine.bench.records import Setup, Windows, Workload
from engine.bench.workers import ArmFailed, Worker
from engine.config import EngineConfig
from engine.model.loading import load_decoder
from engine.perplexity.scoring import score
from engine.tokenizer import Tokenizer

PEER = Setup("peer", "weights.gguf", 1, (2,))
# A peer in a few lines: whatever it is asked, it answers as its last argument says.
FAKE = """
import os, sys, json
sys.stdin.readline()
print(json.dumps({"type": "opened", "details": {"version": "9"}, "opening_ms": 1.0}), flush=True)
for line in sys.stdin:
    if sys.argv[1] == "abort":
        print("unknown instruction", file=sys.stderr, flush=True)
        os.abort()
    if sys.argv[1] == "refuse":
        print(json.dumps({"type": "failed", "reason": "out of room"}), flush=True)
    else:
        asked = json.loads(line)
        answers = [{"id": a["id"], "token_ids": [a["prompt_ids"][-1]], "first_token_ms": 1.5}
                   for a in asked["asks"]]
        print(json.dumps({"type": "ran", "answers": answers, "elapsed_ms": 2, "prefill_tokens": 3,
            "prefill_ms": 1, "decode_tokens": 0, "decode_ms": 0, "step_ms": [],
            "peak_memory_bytes": 7}), flush=True)
"""


def fake(how: str) -> tuple[str, ...]:
    return ("-c", FAKE, how)


def test_a_peer_answers_in_its_own_process() -> None:
    with Worker("peer", PEER, fake("answer")) as worker:
        assert worker.details == {"version": "9"}
        ran = worker.run(Workload((ask("a", length=4),), 1, 8))
        assert [answer.token_ids for answer in ran.answers] == [(3,)]
        assert ran.peak_memory_bytes == 7
        assert worker.run(Workload((ask("b"),), 1, 8)).answers[0].id == "b"


def test_a_refusal_names_the_peer_and_leaves_it_alive() -> None:
    with Worker("peer", PEER, fake("refuse")) as worker:
        for _ in range(2):
            with pytest.raises(ArmFailed, match="peer: out of room"):
                worker.run(Workload((ask("a"),), 1, 8))


def test_a_crash_is_told_with_its_signal_and_its_last_words() -> None:
    with Worker("peer", PEER, fake("abort")) as worker:
        for _ in range(2):
            with pytest.raises(ArmFailed, match=r"SIGABRT.*unknown instruction"):
                worker.run(Workload((ask("a"),), 1, 8))


@pytest.mark.parametrize(
    ("setup", "complaint"),
    [
        (PEER, "no arm of kind 'peer'"),
        (Setup("dflash", "none.dfm", 1, (2,), EngineConfig()), "none.dfm"),
    ],
)
def test_an_engine_that_does_not_open_says_why(setup: Setup, complaint: str) -> None:
    with pytest.raises(ArmFailed, match=complaint):
        Worker("arm", setup)


def test_our_own_arm_runs_every_variant_to_the_same_tokens_and_scores(tmp_path: Path) -> None:
    path = write_tiny_dfm(tmp_path / "tiny.dfm")
    tokenizer = Tokenizer.from_dfm(path)
    config = EngineConfig(kv_tokens=1024, degrade_policy="never")  # or time would decide
    asks = tuple(
        ask_of(tokenizer, name, text) for name, text in (("a", "the and the "), ("b", "in the on"))
    )
    said = []
    with Worker("dflash", Setup("dflash", str(path), 1, (2,), config)) as worker:
        assert worker.details["backend"] == "fp32"
        for variant in ("", "verifier-only", "chain", "headless", "warm"):
            ran = worker.run(Workload(asks, 2, 12, 0.8, 7, variant))
            said.append([answer.token_ids for answer in ran.answers])
            assert 0 < ran.decode_tokens < ran.emitted_tokens
            assert ran.decode_ms <= ran.elapsed_ms
            assert all(answer.first_token_ms for answer in ran.answers)
            if variant == "warm":
                assert sum(answer.counters.cached_tokens for answer in ran.answers) > 0
            else:
                assert ran.prefill_tokens == sum(len(each.prompt_ids) for each in asks)
        scored = worker.score(Windows(((5, 6, 7, 8),), (2,)))
    assert all(tokens == said[0] for tokens in said)
    decoder = load_decoder(path, threads=1, kv_tokens=64)
    assert (scored.negative_log_likelihood, scored.tokens) == score(decoder, [(5, 6, 7, 8)], [2])


def ask_of(tokenizer: Tokenizer, name: str, text: str):
    return type(ask("x"))(name, "code", tuple(tokenizer.encode(text)))
