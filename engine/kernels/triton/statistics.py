"""What the raw verifier thought at each node, in one pass over its logits.

Per row: the largest logits and their tokens, log-sum-exp, entropy, and the log-probability of the
tokens that the node's children carry. A program walks one row in chunks, keeping

    top      the largest logit so far
    total    sum of exp(x - top)
    moment   sum of exp(x - top) * (x - top)

and rescales the two sums whenever `top` grows (the online softmax, Milakov and Gimelshein 2018,
with a first moment). Exponentials are float32, sums float64: 50,000 terms would cost four digits.
The best tokens are kept as sortable integers, value above inverted token, so that the lowest of
equals comes first; a chunk is searched again only while it holds a better one.

Dims: Q rows, V vocabulary, C children of a row at most, B best tokens. Grid: Q.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.kernels.triton.statistics_reference import NodeStatistics

CHUNK = 4096
_CHILDREN = 16  # children a row is compiled for, unless there are more


@triton.jit(do_not_specialize=["child_count"])
def node_statistics_kernel(
    logits,
    children,
    top_ids,
    top_logits,
    summary,
    child_logprobs,
    vocabulary,
    child_count,
    BEST: tl.constexpr,
    CHILDREN: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write one row's statistics."""
    row = tl.program_id(0).to(tl.int64)
    own = logits + row * vocabulary
    place = tl.arange(0, CHUNK)
    slots = tl.arange(0, BEST)
    none = tl.full([CHUNK], -(2**63), tl.int64)
    best = tl.full([BEST], -(2**63), tl.int64) + slots  # all different, all below any logit
    top = tl.full([], -3.0e38, tl.float32)
    total = tl.full([], 0.0, tl.float64)
    moment = tl.full([], 0.0, tl.float64)
    for start in range(0, vocabulary, CHUNK):
        ids = start + place
        inside = ids < vocabulary
        values = tl.load(own + ids, mask=inside, other=-float("inf"))
        grown = tl.maximum(top, tl.max(values, axis=0))
        step = top - grown
        shifted = tl.where(inside, values - grown, 0.0)
        weights = tl.where(inside, tl.exp(shifted), 0.0)
        fading = tl.exp(step).to(tl.float64)
        moment = (moment + total * step.to(tl.float64)) * fading
        moment += tl.sum((weights * shifted).to(tl.float64), axis=0)
        total = total * fading + tl.sum(weights.to(tl.float64), axis=0)
        top = grown
        # as integers, floats sort by their bits once the negative ones are turned round
        bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)
        order = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        keys = (order.to(tl.int64) << 32) | (0x7FFFFFFF - ids).to(tl.int64)
        keys = tl.where(inside, keys, none)
        candidate = tl.max(keys, axis=0)
        least = tl.min(best, axis=0)
        while candidate > least:
            best = tl.where(best == least, candidate, best)
            keys = tl.where(keys == candidate, none, keys)
            candidate = tl.max(keys, axis=0)
            least = tl.min(best, axis=0)
    log_total = tl.log(total)
    log_sum_exp = top.to(tl.float64) + log_total
    tl.store(summary + row * 2, log_sum_exp)
    tl.store(summary + row * 2 + 1, log_total - moment / total)
    for rank in range(BEST):
        key = tl.max(best, axis=0)
        best = tl.where(best == key, -(2**63), best)
        order = (key >> 32).to(tl.int32)
        bits = order ^ ((order >> 31) & 0x7FFFFFFF)
        tl.store(top_ids + row * BEST + rank, 0x7FFFFFFF - (key & 0x7FFFFFFF))
        tl.store(top_logits + row * BEST + rank, bits.to(tl.float32, bitcast=True))
    child = tl.arange(0, CHILDREN)
    wanted = child < child_count
    ids = tl.load(children + row * child_count + child, mask=wanted, other=-1)
    found = ids >= 0
    values = tl.load(own + ids, mask=found, other=0.0).to(tl.float64)
    logprobs = tl.minimum(values - log_sum_exp, 0.0)
    logprobs = tl.where(found, logprobs, float("nan"))
    tl.store(child_logprobs + row * child_count + child, logprobs, mask=wanted)


def statistics_options(best: int, child_count: int) -> dict[str, Any]:
    """Return what the kernel is compiled with; `best` is a power of two."""
    return {
        "BEST": best,
        "CHILDREN": max(_CHILDREN, triton.next_power_of_2(child_count)),
        "CHUNK": CHUNK,
        "num_warps": 8,
    }


def node_statistics(logits: Tensor, children: Tensor, best: int = 1) -> NodeStatistics:
    """Summarise each row of raw logits [Q, V] float32; `children` [Q, C] int64, -1 for none.

    `best` tokens are kept of each row, a power of two of at most V.
    """
    logits, children = logits.contiguous(), children.contiguous()
    rows, vocabulary = logits.shape
    child_count = children.shape[1]
    assert best & (best - 1) == 0 < best <= vocabulary, (best, vocabulary)
    top_ids = logits.new_empty(rows, best, dtype=torch.int64)
    top_logits = logits.new_empty(rows, best)
    summary = logits.new_empty(rows, 2, dtype=torch.float64)
    child_logprobs = logits.new_empty(rows, child_count, dtype=torch.float64)
    if rows:
        node_statistics_kernel[(rows,)](
            *(logits, children, top_ids, top_logits, summary, child_logprobs),
            *(vocabulary, child_count),
            **statistics_options(best, child_count),
        )
    log_sum_exp, entropy = summary.unbind(1)
    return NodeStatistics(top_ids, top_logits, log_sum_exp, entropy, child_logprobs)
