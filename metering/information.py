"""Information bits: how much the answer told, under the raw verifier.

-log2 p of each token, clipped at log2 of the vocabulary: a token cannot tell more than which of
all tokens it is. Integers throughout, so every machine counts the same microbits.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Context, Decimal
from functools import cache

# 1 / ln 2, scaled: a micronat is this many 10^-18 microbits.
UBITS_PER_UNAT_E18 = 1_442_695_040_888_963_407
E18 = 10**18


@cache
def clip_ubits(vocab_size: int) -> int:
    """log2 of the vocabulary in microbits, half-even: the most that one token can tell."""
    context = Context(prec=40, rounding=ROUND_HALF_EVEN)
    bits = context.divide(context.ln(Decimal(vocab_size)), context.ln(Decimal(2)))
    return int(context.to_integral_value(bits * 1_000_000))


def total_ubits(logprobs_unats: Iterable[int | None], vocab_size: int) -> int | None:
    """Microbits of tokens with these natural log-probabilities (micronats, at most 0).

    Each is rounded to the nearest. Null as soon as one has no log-probability.
    """
    clip, total = clip_ubits(vocab_size), 0
    for unats in logprobs_unats:
        if unats is None:
            return None
        # Only odd multiples of 5 * 10**17 micronats would be half-way, far beyond the clip.
        ubits = (E18 // 2 - unats * UBITS_PER_UNAT_E18) // E18
        total += min(ubits, clip)
    return total
