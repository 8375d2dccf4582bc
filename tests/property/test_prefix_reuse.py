"""A conversation that goes on finds all that was computed of it, and no bit of it differs."""

from __future__ import annotations

import numpy as np
import pytest
from block_models import write_block_dfm
from engine_schedules import Heard, loop_on
from engine_sequences import request as a_request
from tiny_models import TinyShape, write_tiny_dfm

from engine.config import EngineConfig
from engine.loop.decoding import DecodeLoop
from engine.opening import OpenModel, open_model
from engine.requests import GenerationRequest, SamplingParams

SLOTS = 1024
SAMPLED = SamplingParams(temperature=0.9, seed=4)


@pytest.fixture(scope="module", params=["fp32", "blocks"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    path = tmp_path_factory.mktemp("models") / "tiny.dfm"
    shape = TinyShape(seed=3, tied_embeddings=False)
    (write_tiny_dfm if request.param == "fp32" else write_block_dfm)(path, shape)
    return open_model(path, EngineConfig(backend=request.param, kv_tokens=SLOTS, threads=1))


def loop_of(model: OpenModel, heard: Heard, **changes: int) -> DecodeLoop:
    config = EngineConfig(single_flight=False, **changes)
    return loop_on(model.decoder, model.tokenizer, model.tokenizer.vocab_size, config, heard, SLOTS)


def answer(loop: DecodeLoop, heard: Heard, asked: GenerationRequest) -> list[int]:
    loop.submit(asked)
    while loop.busy:
        heard.take(loop.step())
        loop.pool.check()
    loop.check()
    return heard.tokens[asked.request_id]


@pytest.mark.parametrize("sampling", [SamplingParams(), SAMPLED], ids=["greedy", "sampled"])
def test_a_conversation_finds_everything_but_its_newest_words(
    model: OpenModel, sampling: SamplingParams
) -> None:
    """Given turns of any length, answers included, against an engine that knows nothing."""
    assert model.decoder.batch_invariant
    random = np.random.default_rng(1)
    warm = Heard()
    loop = loop_of(model, warm, prefill_chunk=11)
    text: list[int] = random.integers(3, 269, 19).tolist()
    turns, known = [], 0
    for turn in range(9):
        asked = a_request(
            text,
            int(random.integers(2, 24)),
            request_id=str(turn),
            sampling=sampling,
            ignore_eos=True,
        )
        tokens = answer(loop, warm, asked)
        assert warm.found[str(turn)] == known
        turns.append(asked)
        known = len(text) + len(tokens) - 1  # the last token drawn was never computed
        text = [*text, *tokens, *random.integers(3, 269, int(random.integers(1, 20))).tolist()]
    cold: dict[tuple[str, int], bytes] = {}
    for asked in turns:  # now that the first loop needs the storage no more
        alone = Heard()
        assert answer(loop_of(model, alone), alone, asked) == warm.tokens[asked.request_id]
        assert alone.found[asked.request_id] == 0
        cold |= alone.logits
    assert cold == warm.logits


def test_a_fork_within_a_page_copies_and_leaves_the_original_as_it_was(model: OpenModel) -> None:
    """Given questions that part in the middle of a page, asked in turn and again."""
    warm, trunk = Heard(), list(range(40, 61))
    loop = loop_of(model, warm)
    questions = [[*trunk, 100 + branch, *range(branch, branch + 7)] for branch in range(4)]
    for round_ in range(2):
        for branch, question in enumerate(questions):
            name = f"{branch}/{round_}"
            answer(loop, warm, a_request(question, 9, request_id=name, ignore_eos=True))
            expected = len(question) - 1 if round_ else len(trunk) if branch else 0
            assert warm.found[name] == expected
    for branch, question in enumerate(questions):
        cold = Heard()
        name = f"{branch}/1"
        answer(loop_of(model, cold), cold, a_request(question, 9, request_id=name, ignore_eos=True))
        assert cold.logits
        assert {key: warm.logits[key] for key in cold.logits} == cold.logits


def test_those_who_come_together_compute_what_they_share_once(model: OpenModel) -> None:
    heard, system = Heard(), list(range(30, 90))
    loop = loop_of(model, heard, prefill_chunk=16)
    for user in range(8):
        own = [200 + user, *range(10, 15)]
        loop.submit(a_request([*system, *own], 4, request_id=str(user), ignore_eos=True))
    while loop.busy:
        heard.take(loop.step())
    loop.check()
    prefill = sum(part.work.prefill_tokens for step in heard.steps for part in step.work)
    assert prefill == len(system) + 8 * 6
