"""Sliding windows over token sequences, and the perplexity that comes of them. Torch-free.

A sequence x_0 .. x_{n-1} is cut into windows of at most W tokens that begin S tokens apart. Every
token but the first of the sequence counts exactly once, in the first window that holds it, given
all tokens before it in that window:

    window 0   [0 . . . . . . . W)            counts 1 .. W-1
    window 1         [S . . . . . . . S+W)    counts W .. S+W-1, each with W-S tokens before it

    perplexity = exp( - sum of log p(x_i | window before it) / number of counted tokens )

Log-probabilities are natural, of the raw logits, summed in double precision. No token is put in
front: a model that wants a beginning-of-text token gets it from its tokenizer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

WINDOW = 512
STRIDE = 256


def windows(
    token_ids: Sequence[int], window: int, stride: int
) -> tuple[list[tuple[int, ...]], list[int]]:
    """Cut a sequence into windows; return them and, of each, the index of its first that counts.

    Empty for fewer than two tokens, of which none counts.
    """
    assert 0 < stride < window, (window, stride)
    cut: list[tuple[int, ...]] = []
    firsts: list[int] = []
    counted = 1
    for start in range(0, len(token_ids), stride):
        if counted >= len(token_ids):
            break
        cut.append(tuple(token_ids[start : start + window]))
        firsts.append(counted - start)
        counted = start + window
    return cut, firsts


def perplexity(negative_log_likelihood: float, tokens: int) -> float:
    """Return exp of the mean; not a number where nothing counted."""
    return math.exp(negative_log_likelihood / tokens) if tokens else math.nan
