"""Penalties and biases: as transformers and OpenAI define them, one sequence at a time."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from engine.requests import SamplingParams
from engine.sampling.penalties import Penalties, penalises

VOCAB = 12
tokens = st.lists(st.integers(0, VOCAB - 1), max_size=10)


def logits(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=VOCAB).astype(np.float32) * 3


def after(params: SamplingParams, prompt: list[int], output: list[int]) -> Penalties:
    penalties = Penalties(params, prompt, VOCAB)
    for token in output:
        penalties.take(token)
    return penalties


@settings(max_examples=40)
@given(prompt=tokens.filter(bool), output=tokens, penalty=st.floats(0.1, 10.0), seed=st.integers(0))
def test_repetition_is_what_transformers_does_to_prompt_and_output(
    prompt: list[int], output: list[int], penalty: float, seed: int
) -> None:
    row = logits(seed)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(
        torch.tensor([[*prompt, *output]]), torch.from_numpy(row[None].copy())
    )
    ours = after(SamplingParams(repetition_penalty=penalty), prompt, output).applied(row)
    np.testing.assert_allclose(ours, theirs[0].numpy(), rtol=1e-6)


@settings(max_examples=40)
@given(
    output=tokens,
    frequency=st.floats(-2, 2),
    presence=st.floats(-2, 2),
    bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100), max_size=4),
    seed=st.integers(0),
)
def test_frequency_presence_and_bias_are_openais_formula_on_the_output(
    output: list[int], frequency: float, presence: float, bias: dict[int, float], seed: int
) -> None:
    params = SamplingParams(
        frequency_penalty=frequency,
        presence_penalty=presence,
        logit_bias=tuple(sorted(bias.items())),
    )
    row = logits(seed)
    expected = [
        value
        - output.count(token) * frequency
        - (presence if token in output else 0.0)
        + bias.get(token, 0.0)
        for token, value in enumerate(row.tolist())
    ]
    np.testing.assert_allclose(
        after(params, [1, 2, 3], output).applied(row), expected, rtol=1e-5, atol=1e-4
    )


def test_the_row_given_stays_as_it_is() -> None:
    row = logits(0)
    before = row.copy()
    after(SamplingParams(repetition_penalty=2.0), [1], [2]).applied(row)
    assert (row == before).all()


def test_neutral_parameters_penalise_nothing() -> None:
    assert not penalises(SamplingParams(temperature=1.0, top_k=3, seed=9))
    assert penalises(SamplingParams(logit_bias=((1, 0.0),)))
