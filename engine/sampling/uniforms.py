"""One uniform per (seed, choice, position), whenever and in whatever order it is asked for.

Philox-4x64-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011): a keyed bijection of a counter, so nothing has to be carried from draw to draw, and a
token's uniform is the same drafted or not, preempted or not.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)
_ROUNDS = 10


def philox(key: tuple[int, int], counter: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """Return the block of four 64-bit words of one counter under one key."""
    k0, k1 = key
    c0, c1, c2, c3 = counter
    for _ in range(_ROUNDS):
        p0, p1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & _MASK, (p0 >> 64) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniform(seed: int, choice: int, position: int) -> float:
    """Return the uniform in [0, 1) that draws the token at an absolute position.

    Seeds are taken modulo 2**64. 53 bits, so every value is an exact double.
    """
    word = philox((seed & _MASK, choice & _MASK), (position, 0, 0, 0))[0]
    return (word >> 11) * 2.0**-53
