"""Whole minor units of a currency, and how exact amounts become them. Pure.

Money is kept in nano until an invoice states it; there each total is rounded once, half to even,
and its parts are fitted to it by largest remainder, so that what is printed adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

from billing.errors import InvalidAmount
from billing.money import NANO, format_nano, parse_nano

# ISO 4217 minor units that are not two decimals.
_WHOLE = (
    "BIF",
    "CLP",
    "DJF",
    "GNF",
    "ISK",
    "JPY",
    "KMF",
    "KRW",
    "PYG",
    "RWF",
    "UGX",
    "UYI",
    "VND",
    "VUV",
    "XAF",
    "XOF",
    "XPF",
)
_THOUSANDTHS = ("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND")
_DECIMALS = {
    **dict.fromkeys(_WHOLE, 0),
    **dict.fromkeys(_THOUSANDTHS, 3),
    **dict.fromkeys(("CLF", "UYW"), 4),
}


def decimals(currency: str) -> int:
    """How many decimals amounts of a currency are stated in."""
    return _DECIMALS.get(currency, 2)


def minor_nano(currency: str) -> int:
    """One minor unit of a currency, in nano: a cent is 10,000,000."""
    return int(NANO // 10 ** decimals(currency))


def rounded(nano: int, minor: int) -> int:
    """An exact amount in whole minor units, ties to even."""
    return round(Fraction(nano, minor))


def tax(base_minor: int, percent: Decimal) -> int:
    """The tax on an amount, in whole minor units, ties away from zero as tax offices do."""
    exact = Decimal(base_minor) * percent / 100
    return int(exact.to_integral_value(ROUND_HALF_UP))


def apportion(parts_nano: Sequence[int], total_minor: int, minor: int) -> list[int]:
    """Whole minor units for parts that were rounded together to `total_minor`; they add up to it.

    Each part is rounded down, and the largest remainders, ties to the first, get one unit more.
    No part is off by a whole unit. Raises ValueError when the total is not theirs.
    """
    whole = [divmod(nano, minor) for nano in parts_nano]
    left = total_minor - sum(quotient for quotient, _ in whole)
    if not 0 <= left <= len(whole):
        raise ValueError(f"{total_minor} is not what these parts were rounded to")
    ranked = sorted(range(len(whole)), key=lambda index: (-whole[index][1], index))
    favoured = set(ranked[:left])
    return [quotient + (index in favoured) for index, (quotient, _) in enumerate(whole)]


def format_minor(amount_minor: int, minor: int) -> str:
    """Minor units as a decimal string with all its decimals: 1050 cents are "10.50"."""
    places = len(str(NANO // minor)) - 1
    sign = "-" if amount_minor < 0 else ""
    digits = f"{abs(amount_minor):0{places + 1}d}"
    return f"{sign}{digits[:-places]}.{digits[-places:]}" if places else f"{sign}{digits}"


def stated(nano: int, currency: str) -> tuple[str, str]:
    """An exact amount for people: with all decimals of its currency, and what is finer, apart.

    12.5 dollars are "12.50" and "", 12.5 yen "12" and ".5".
    """
    places = decimals(currency)
    whole, _, fraction = format_nano(nano).partition(".")
    coarse, fine = fraction[:places].ljust(places, "0"), fraction[places:]
    if coarse:
        return f"{whole}.{coarse}", fine
    return whole, f".{fine}" if fine else ""


def parse_minor(text: str, minor: int) -> int:
    """Read an amount such as "10.50" as minor units; raises InvalidAmount for a finer one."""
    units, rest = divmod(parse_nano(text), minor)
    if rest:
        raise InvalidAmount(f"finer than the currency's minor unit: {text!r}")
    return units
