"""From a raw score to how often text with such a score was right. Pure, and in integers.

A curve's knots are in ten thousandths, the places in which scores are shown, and values between
them are interpolated and rounded half-even once: the same digits on every machine.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

REQUEST = "request"  # the kind of a whole answer, among the kinds of units
PLACES = 4
ONE = 10**PLACES


class Curve(msgspec.Struct, frozen=True):
    """A rising line through knots: `scores` ascend strictly, `rates` never fall."""

    scores: tuple[int, ...]
    rates: tuple[int, ...]

    def at(self, geo_mean: str) -> str:
        """How often text with this score was right, 4 places; flat beyond the outermost knots."""
        score = to_parts(geo_mean)
        index = bisect_right(self.scores, score)
        if index == 0:
            return to_text(self.rates[0])
        if index == len(self.scores):
            return to_text(self.rates[-1])
        left, right = self.scores[index - 1], self.scores[index]
        low, high = self.rates[index - 1], self.rates[index]
        span = right - left
        return to_text(_half_even(low * span + (high - low) * (score - left), span))


class Calibration(msgspec.Struct, frozen=True):
    """One version of a model's curves, by kind; what has no curve is uncalibrated.

    `review_below` is the raw score of a whole answer below which a human looks at it, where the
    operator put a guarantee in force.
    """

    id: str
    model: str
    model_checksum: str
    curves: dict[str, Curve]
    review_below: str | None = None

    def calibrated(self, kind: str, geo_mean: str) -> str | None:
        """A score of this kind, calibrated; null where the kind has no curve."""
        curve = self.curves.get(kind)
        return None if curve is None else curve.at(geo_mean)


def to_parts(text: str) -> int:
    """A score as shown in ten thousandths; exact, because it is shown in four places."""
    whole, _, fraction = text.partition(".")
    return int(whole + fraction.ljust(PLACES, "0"))


def to_text(parts: int) -> str:
    """Ten thousandths as a score is shown."""
    return f"{parts // ONE}.{parts % ONE:0{PLACES}}"


def _half_even(numerator: int, denominator: int) -> int:
    quotient, rest = divmod(numerator, denominator)
    twice = 2 * rest
    if twice > denominator or (twice == denominator and quotient % 2):
        return quotient + 1
    return quotient
