"""Measuring v(n), what a step costs by its rows, on the decoder that will run them.

Steps of several sizes are run on storage that holds nothing yet: a chain of rows behind a context
of zeros, every row's logits wanted, as in the verification of a draft.
"""

from __future__ import annotations

import math
import time

import numpy as np
import torch
from torch import Tensor

from engine.loop.cost import Curve
from engine.loop.protocols import StepDecoder
from engine.model.rows import Segment, StepRows

# What helps most first. Kernels take rows by eights, twelves or sixteens: one row more can cost as
# much as the next three, and a straight line across that would promise it for a third.
_SIZES = (1, 16, 4, 32, 8, 12, 17, 9, 2, 24)
_CONTEXT = 256
_BUDGET_S = 0.4  # after which no other step is begun ...
_ROUNDS_LEAST, _LONGEST_S = 4, 1.0  # ... unless the machine was too busy for even so many rounds
_ROUNDS = 8


def measured(decoder: StepDecoder, most_rows: int, context_length: int, vocab_size: int) -> Curve:
    """Return v(n) up to about `most_rows`; what the storage held is lost.

    The last two are the model's. Rows are of different tokens, for whose experts a mixture is
    charged as it is for those of a draft.
    """
    room = min(context_length, decoder.storage.slots)
    sizes = [size for size in _SIZES if size <= min(most_rows, room)]
    tokens = torch.arange(max(sizes)) % vocab_size
    _time_ms(decoder, tokens[:1], room)  # whatever happens once happens now
    found: dict[int, float] = {}
    began = time.perf_counter()
    # sizes take turns, so that what the machine does meanwhile falls on all of them alike
    for step, size in enumerate(sizes * _ROUNDS):
        budget_s = _BUDGET_S if step >= len(sizes) * _ROUNDS_LEAST else _LONGEST_S
        if len(found) > 1 and time.perf_counter() - began > budget_s:
            break
        found[size] = min(_time_ms(decoder, tokens[:size], room), found.get(size, math.inf))
    if len(found) == 1:  # one row at a time: a second one is never run
        found[2] = 2 * found[1]
    rows = sorted(found)
    # more rows never cost less: where they seem to, the machine was busy with something else
    times = np.minimum.accumulate([found[size] for size in reversed(rows)])[::-1]
    return tuple(zip(rows, times.tolist(), strict=True))


def _time_ms(decoder: StepDecoder, tokens: Tensor, room: int) -> float:
    rows = len(tokens)
    context = min(_CONTEXT, room - rows)
    slots = torch.arange(context, context + rows)
    tail = torch.where(torch.ones(rows, rows).tril() > 0, slots, -1)
    step = StepRows(
        token_ids=tokens,
        positions=slots,
        slots=slots,
        segments=(Segment(torch.arange(context), tail),),
        logit_rows=torch.arange(rows),
    )
    began = time.perf_counter()
    logits = decoder.forward(step)
    decoder.statistics(logits)
    logits.cpu()
    return (time.perf_counter() - began) * 1e3
