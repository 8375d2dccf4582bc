"""Amounts: int64 counts of 10^-9 currency units ("nano"), exact everywhere, rounded in one place.

Prices are decimals with any number of places; only a rated line turns a product of decimals into
an amount, by one half-even rounding.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact, InvalidOperation

from billing.errors import InvalidAmount

NANO = 1_000_000_000
NANO_MAX = 2**63 - 1

# Wide enough that no product of a price, a quantity and two multipliers is ever rounded by it;
# should one be, the trap raises instead.
EXACT = Context(prec=120, traps=[Inexact, InvalidOperation])
_PLAIN = re.compile(r"-?[0-9]{1,10}(\.[0-9]{1,9})?")


def parse_nano(text: str) -> int:
    """Read a decimal string ("0.25") of currency units; raises InvalidAmount for anything else.

    At most nine places: a finer amount would have to be rounded, and only rating rounds.
    """
    if not _PLAIN.fullmatch(text):
        raise InvalidAmount(
            f"not an amount of at most ten digits and nine decimal places: {text!r}"
        )
    return _checked(int(Decimal(text).scaleb(9)))


def format_nano(nano: int) -> str:
    """Write an amount as the shortest plain decimal string of currency units ("0.25", "0")."""
    whole, fraction = divmod(abs(nano), NANO)
    sign = "-" if nano < 0 else ""
    return f"{sign}{whole}.{fraction:09d}".rstrip("0").rstrip(".")


def round_nano(amount: Decimal) -> int:
    """Round currency units to nano, ties to even: the one rounding of a rated line."""
    return _checked(int(amount.scaleb(9, EXACT).to_integral_value(ROUND_HALF_EVEN)))


def plain(value: Decimal) -> str:
    """Write a decimal without exponent or trailing zeros."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Split an amount in proportion to weights; the parts add up to it exactly.

    Largest remainder: each part is its share rounded toward zero, and what is left goes, one nano
    each, to the largest remainders, ties to the first. Raises InvalidAmount without any weight.
    """
    weight = sum(weights)
    if weight <= 0 or min(weights) < 0:
        raise InvalidAmount("weights must be non-negative, and one of them positive")
    sign = -1 if total < 0 else 1
    shares = [divmod(abs(total) * part, weight) for part in weights]
    left = abs(total) - sum(quotient for quotient, _ in shares)
    ranked = sorted(range(len(shares)), key=lambda index: (-shares[index][1], index))
    favoured = set(ranked[:left])
    return [sign * (shares[index][0] + (index in favoured)) for index in range(len(shares))]


def _checked(nano: int) -> int:
    if abs(nano) > NANO_MAX:
        raise InvalidAmount(f"amount beyond {format_nano(NANO_MAX)} currency units")
    return nano
