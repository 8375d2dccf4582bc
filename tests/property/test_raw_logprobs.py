"""Confidence is what the model thought of its own answer, whichever way the answer came about.

Goal: the log-probability of every emitted token, drafted, plain, sampled, penalised, biased or held
to a schema, is that of one plain forward pass over prompt and answer, to 1e-4 nats; and tokens that
the schema left no alternative to are told apart, and count in no score.
Method: the engine's loop answers; then the bare decoder reads the whole text once, causally, with
nothing cached, and its logits are normalised in double precision.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from engine_schedules import NoCost
from engine_sequences import request as a_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from metering_cases import admitted_request
from real_model import real_dfm
from tiny_models import TinyShape, write_tiny_dfm

from engine.config import EngineConfig
from engine.model.rows import Segment, StepRows
from engine.opening import OpenModel, open_model
from engine.records import FinishReason, StepRecord, Work
from engine.requests import GenerationRequest, SamplingParams
from metering import bodies
from metering.events import EndedBy, RequestStatus
from metering.request_meter import RequestMeter
from metering.review_rule import ReviewRule

TOLERANCE_NATS = 1e-4
SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {"the": {"enum": ["and", "then"]}, "n": {"type": "boolean"}},
        "required": ["the", "n"],
        "additionalProperties": False,
    }
)
DRAFTED = EngineConfig(draft=True, node_budget=12, max_running=8, verifier_batch_size=8)


@torch.inference_mode()
def plain_logprobs(model: OpenModel, prompt: tuple[int, ...], said: list[int]) -> list[float]:
    """What one causal pass over the whole text makes of the answer's tokens, in nats."""
    text = [*prompt, *said]
    positions = torch.arange(len(text))
    before = torch.ones(len(text), len(text)).tril() > 0
    step = StepRows(
        token_ids=torch.tensor(text),
        positions=positions,
        slots=positions,
        segments=(Segment(torch.arange(0), torch.where(before, positions, -1)),),
        logit_rows=torch.arange(len(prompt) - 1, len(text) - 1),
    )
    normalised = model.decoder.forward(step).cpu().double().log_softmax(-1)
    return normalised.gather(1, torch.tensor(said)[:, None]).flatten().tolist()


def answers(
    model: OpenModel, config: EngineConfig, requests: list[GenerationRequest]
) -> list[StepRecord]:
    """All requests at once, to their ends."""
    loop = model.loop(config, cost=NoCost())
    for each in requests:
        loop.submit(each)
    steps = []
    while (step := loop.step()) is not None:
        steps.append(step)
    return steps


def check(model: OpenModel, requests: list[GenerationRequest], steps: list[StepRecord]) -> set[str]:
    """Compare every answer with a plain pass; the ways in which tokens came about."""
    ways = set()
    for each in requests:
        blocks = [
            (step, block)
            for step in steps
            for block in step.blocks
            if block.request_id == each.request_id
        ]
        said = [token for _, block in blocks for token in block.token_ids]
        told = [logprob for _, block in blocks for logprob in block.logprobs]
        assert said
        plain = plain_logprobs(model, each.prompt_ids, said)
        assert told == pytest.approx(plain, abs=TOLERANCE_NATS)

        meter = RequestMeter(admitted_request(each.request_id), ReviewRule(0.0))
        chosen = []
        for step, block in blocks:
            assert each.json_schema is not None or not block.forced
            meter.fold(bodies.block_body(step, block, Work(), model.info.vocab_size))
            start = meter.drafting.emitted_tokens - len(block.token_ids)
            chosen += [
                plain[start + index]
                for index in range(len(block.token_ids))
                if index not in block.forced
            ]
            ways |= {"forced"} if block.forced else set()
            ways |= {"drafted"} if block.accepted_tokens else {"plain"}
        end = meter.terminal(RequestStatus.COMPLETED, FinishReason.LENGTH, EndedBy.TENANT)
        summary = meter.summary(end, 1)
        assert summary.forced_tokens == len(said) - len(chosen)
        if chosen:
            assert summary.confidence is not None
            assert summary.confidence.tokens == len(chosen)
            assert float(summary.confidence.sum_logprob) == pytest.approx(
                sum(chosen), abs=TOLERANCE_NATS * len(chosen)
            )
        else:
            assert summary.confidence is None
    return ways


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> OpenModel:
    """With tied embeddings it repeats itself, so drafts are right; without, it never does."""
    path: Path = tmp_path_factory.mktemp("models") / "tiny.dfm"
    write_tiny_dfm(path, TinyShape(seed=3, tied_embeddings=request.param))
    return open_model(path, EngineConfig(kv_tokens=2048, threads=1))


@st.composite
def orders(draw: st.DrawFn) -> list[GenerationRequest]:
    """Up to five requests, each answered in a way of its own."""
    found = []
    for number in range(draw(st.integers(1, 5))):
        sampling = SamplingParams(
            temperature=draw(st.sampled_from([0.0, 0.0, 0.7, 1.5])),
            top_k=draw(st.sampled_from([None, 5])),
            top_p=draw(st.sampled_from([1.0, 0.9])),
            repetition_penalty=draw(st.sampled_from([1.0, 1.3])),
            logit_bias=draw(st.sampled_from([(), ((40, 4.0), (41, -100.0))])),
            seed=number,
        )
        schema = draw(st.sampled_from([None, None, SCHEMA]))
        found.append(
            a_request(
                draw(st.lists(st.integers(3, 268), min_size=1, max_size=20)),
                draw(st.integers(1, 24)),
                request_id=f"req_{number}",
                sampling=sampling,
                draft=draw(st.booleans()),
                ignore_eos=schema is None and draw(st.booleans()),
                json_schema=schema,
            )
        )
    return found


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(orders())
def test_every_way_of_answering_reports_the_log_probabilities_of_a_plain_pass(
    tiny: OpenModel, requests: list[GenerationRequest]
) -> None:
    check(tiny, requests, answers(tiny, DRAFTED, requests))


def test_on_the_real_model_too_in_company_and_alone() -> None:
    model = open_model(real_dfm(), EngineConfig(kv_tokens=4096, threads=1))
    sampled = SamplingParams(temperature=0.9, top_k=40, seed=5)
    prompts = {
        "greedy": ("1, 2, 3, 4, 5, 6, 7, 8, 9,", {}),
        "undrafted": ("Once upon a time,", {"draft": False}),
        "sampled": ("def area(radius):\n    return", {"sampling": sampled}),
        "penalised": (
            "The sea, the sea, the sea,",
            {"sampling": SamplingParams(repetition_penalty=1.4, frequency_penalty=0.5)},
        ),
        "biased": ("Water is", {"sampling": SamplingParams(logit_bias=((260, 6.0),))}),
        "held to a schema": ("Answer in JSON:", {"json_schema": SCHEMA}),
        "both": ("JSON please:", {"json_schema": SCHEMA, "sampling": sampled}),
    }
    requests = [
        a_request(tuple(model.tokenizer.encode(text)), 20, request_id=name, **options)
        for name, (text, options) in prompts.items()
    ]
    together = check(model, requests, answers(model, DRAFTED, requests))
    assert together == {"drafted", "plain", "forced"}
    alone = EngineConfig(draft=False, max_running=1)
    assert "plain" in check(model, requests[:3], answers(model, alone, requests[:3]))
