from __future__ import annotations

from decimal import ROUND_HALF_EVEN, Decimal

from hypothesis import example, given
from hypothesis import strategies as st

from metering.calibration import Curve
from metering.calibration.curves import ONE, to_parts, to_text


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    scores = sorted(draw(st.sets(st.integers(0, ONE), min_size=1, max_size=8)))
    rates = sorted(draw(st.lists(st.integers(0, ONE), min_size=len(scores), max_size=len(scores))))
    return Curve(tuple(scores), tuple(rates))


@given(curves(), st.integers(0, ONE), st.integers(0, ONE))
@example(Curve((0, 2), (1, 2)), 1, 0)  # 1.5 ten-thousandths: the value is rounded, not the rise
def test_a_curve_rises_stays_within_its_knots_and_rounds_half_to_even(
    curve: Curve, one: int, other: int
) -> None:
    low, high = (to_parts(curve.at(to_text(each))) for each in sorted((one, other)))
    assert curve.rates[0] <= low <= high <= curve.rates[-1]
    for score, rate in zip(curve.scores, curve.rates, strict=True):
        assert curve.at(to_text(score)) == to_text(rate)
    for (left, low), (right, high) in zip(
        zip(curve.scores, curve.rates, strict=True),
        list(zip(curve.scores, curve.rates, strict=True))[1:],
        strict=False,
    ):
        if left <= one <= right:
            exact = Decimal(low) + Decimal(high - low) * (one - left) / (right - left)
            assert to_parts(curve.at(to_text(one))) == exact.quantize(
                Decimal(1), rounding=ROUND_HALF_EVEN
            )


def test_text_and_parts_are_one_another() -> None:
    for text in ("0.0000", "0.0001", "0.9999", "1.0000"):
        assert to_text(to_parts(text)) == text
