"""The twin's functions against arithmetic that cannot round: integers and fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.kernels.cpu.arithmetic import exponential, fused, lane_sum, quantise, rms_norm

FLOATS = st.floats(
    width=32, allow_nan=False, allow_infinity=False, min_value=-(2**40), max_value=2**40
)
SHORT = st.integers(-(2**12), 2**12).map(float)  # products that end half way between two float32


def nearest(value: Fraction) -> np.float32:
    """Return the float32 nearest to a fraction, the even one of two."""
    if value == 0:
        return np.float32(0.0)
    exponent = max(math.frexp(float(value))[1] - 24, -149)
    step = Fraction(2) ** exponent
    return np.float32(float(round(value / step) * step))


@settings(max_examples=300)
@given(a=FLOATS | SHORT, b=FLOATS | SHORT, c=FLOATS | st.integers(-(2**24), 2**24).map(float))
def test_a_fused_multiply_add_rounds_once(a, b, c):
    exact = nearest(Fraction(a) * Fraction(b) + Fraction(c))
    assert fused(torch.tensor([a]), torch.tensor([b]), torch.tensor([c])).numpy()[0] == exact


def test_a_sum_half_way_between_two_floats_goes_where_the_error_points():
    one, tiny = torch.tensor([1.0]), torch.tensor([2.0**-60])
    half = torch.tensor([2.0**-24])  # half of one's last place
    up = fused(torch.tensor([1.0 + 2.0**-23]), half, one)
    assert up.item() == 1.0 + 2.0**-23  # 1 + 2^-24 + 2^-47: above half way
    assert fused(half, one, one).item() == 1.0  # half way: to even
    assert (fused(tiny, one, one) == 1.0).all()


def test_the_exponential_is_within_two_units_of_the_last_place():
    values = torch.linspace(-87.0, 88.0, 20_001)
    exact = values.double().exp()
    assert ((exponential(values) - exact) / exact).abs().max() < 2 * 2.0**-23
    assert exponential(torch.tensor([-1000.0])).item() > 0.0


def test_lanes_are_summed_in_order_and_then_across():
    values = np.random.default_rng(0).normal(size=48).astype(np.float32)
    lanes = (values[:16] + values[16:32]) + values[32:]
    for width in (8, 4, 2, 1):
        lanes = lanes[:width] + lanes[width:]
    assert lane_sum(torch.from_numpy(values)).item() == lanes[0]


def test_quantised_values_are_within_half_a_step():
    values = torch.randn(5, 96, generator=torch.Generator().manual_seed(0))
    integers, scales, sums = quantise(values, 32)
    assert integers.abs().amax(-1).eq(127).all()
    error = values.view(5, 3, 32) - integers * scales[..., None]
    assert (error.abs() <= 0.5001 * scales[..., None]).all()
    assert torch.equal(sums, integers.sum(-1))
    zeros = quantise(torch.zeros(1, 32), 32)
    assert all((part == 0).all() for part in zeros)


def test_the_norm_is_torchs_to_the_last_places():
    generator = torch.Generator().manual_seed(1)
    rows, weight = torch.randn(4, 64, generator=generator), torch.randn(64, generator=generator)
    expected = torch.nn.functional.rms_norm(rows, (64,), weight, 1e-5)
    torch.testing.assert_close(rms_norm(rows, weight, 1e-5), expected, rtol=1e-6, atol=1e-6)
