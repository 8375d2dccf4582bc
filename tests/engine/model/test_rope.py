from __future__ import annotations

import math

import pytest
import torch

from engine.dfm.header import Architecture, RopeProfile
from engine.model.rope import RotaryTable

HEADS, KV_HEADS, DIM = 4, 2, 8


def architecture(**rope):
    return Architecture(
        family="llama",
        layers=1,
        hidden=HEADS * DIM,
        intermediate=8,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=DIM,
        vocab_size=10,
        context_length=4096,
        norm_epsilon=1e-5,
        tied_embeddings=True,
        rope=RopeProfile(dimensions=DIM, **{"theta": 10_000.0, **rope}),
    )


def rotated(position, **rope):
    """One row of ones, rotated to a position: [heads + 2 kv heads, dim]."""
    table = RotaryTable(architecture(**rope), torch.device("cpu"))
    row = torch.ones(1, (HEADS + 2 * KV_HEADS) * DIM)
    return table.at(torch.tensor([position])).apply(row)[0]


@pytest.mark.parametrize("position", [0, 1, 17, 4095])
def test_pairs_turn_by_position_times_frequency(position):
    key = rotated(position)[HEADS]
    for pair in range(DIM // 2):
        angle = position * 10_000 ** (-2 * pair / DIM)
        assert key[pair].item() == pytest.approx(math.cos(angle) - math.sin(angle), abs=1e-6)
        assert key[pair + DIM // 2].item() == pytest.approx(
            math.cos(angle) + math.sin(angle), abs=1e-6
        )


def test_queries_carry_the_attention_scale_and_values_do_not_turn():
    heads = rotated(9)
    torch.testing.assert_close(heads[0], heads[HEADS] / math.sqrt(DIM))
    assert torch.equal(heads[HEADS + KV_HEADS :], torch.ones(KV_HEADS, DIM))


def test_linear_scaling_divides_positions():
    assert torch.equal(rotated(40, scaling_factor=4.0), rotated(10))


def test_frequency_factors_divide_frequencies_one_by_one():
    plain = rotated(3)[HEADS]
    changed = rotated(3, frequency_factors=(1.0, 1.0, 1.0, 3.0))[HEADS]
    assert torch.equal(changed[:3], plain[:3])
    assert changed[3].item() == pytest.approx(
        math.cos(10_000**-0.75) - math.sin(10_000**-0.75), abs=1e-6
    )
