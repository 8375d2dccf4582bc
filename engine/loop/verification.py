"""Drawing from the verifier along a tree: raw statistics first, then processors, then the draw.

Dims: N nodes of one request's tree, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.draft.proposals import Source
from engine.graph.acceptance import Walk, walk
from engine.graph.tree import TokenTree
from engine.loop.emission import Drawn, Emission
from engine.loop.shaping import Shaping
from engine.processors import LogitsProcessor, processed
from engine.requests import GenerationRequest
from engine.sampling.distribution import draw
from engine.sampling.statistics import raw_statistics, top_logprobs
from engine.sampling.uniforms import uniform

# Told of every row that a token is drawn from: request id, position of the token, raw logits [V].
LogitsProbe = Callable[[str, int, NDArray[np.float32]], None]


@dataclass(frozen=True, slots=True)
class Verified:
    """One walk and what was drawn on it."""

    walked: Walk
    drawn: tuple[Drawn, ...]

    @property
    def entropies(self) -> tuple[float, ...]:
        """Raw entropies in nats, parallel to the walk's tokens."""
        return tuple(token.entropy for token in self.drawn)


def verify(
    request: GenerationRequest,
    text: Sequence[int],
    tree: TokenTree,
    logits: Tensor,
    *,
    emission: Emission,
    processors: Sequence[LogitsProcessor] = (),
    shaping: Shaping | None = None,
    probe: LogitsProbe | None = None,
) -> Verified:
    """Draw along the tree until it is left or the text ends. Changes the emission and the shaping.

    `logits` are the raw ones of every node, [N, V] float32 on the CPU; `text` is everything up to
    the root. Raises NonFiniteLogits, NothingToDraw, ProcessorFailed, GrammarFailed.
    """
    raw: NDArray[np.float32] = logits.numpy()
    rows = processed(processors, tree, logits, text) if processors else raw
    sampling = request.sampling
    drawn: list[Drawn] = []

    def draw_at(node: int) -> int:
        position = len(text) + tree.depths[node]
        if probe:
            probe(request.request_id, position, raw[node])
        sampled = sampling.temperature > 0.0
        at = uniform(sampling.seed, request.choice, position) if sampled else 0.0
        # The walk is one path, so what shapes a row has seen exactly the tokens before it.
        row = shaping.shaped(rows[node]) if shaping else rows[node]
        token = draw(row, sampling, at)
        forced = shaping.take(token) if shaping else False
        statistics = raw_statistics(raw[node], token)
        top = top_logprobs(raw[node], request.top_logprobs, token, statistics.logprob)
        child = tree.children[node].get(token)
        cached = child is not None and tree.origins[child] == Source.SHARED
        drawn.append(
            Drawn(
                token,
                statistics.logprob,
                statistics.entropy,
                accepted=child is not None,
                cached=cached,
                forced=forced,
                top=top,
            )
        )
        return token

    walked = walk(tree, draw_at, lambda _token: emission.take(drawn[-1]))
    return Verified(walked, tuple(drawn))
