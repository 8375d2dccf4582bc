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
from engine.loop.emission import Drawn
from engine.loop.shaping import Shaping
from engine.model.statistics import RawStatistics
from engine.processors import LogitsProcessor, processed
from engine.requests import GenerationRequest
from engine.sampling.alternatives import likeliest
from engine.sampling.distribution import draw
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
    statistics: Sequence[RawStatistics],
    *,
    hear: Callable[[Drawn], bool],
    processors: Sequence[LogitsProcessor] = (),
    shaping: Shaping | None = None,
    probe: LogitsProbe | None = None,
) -> Verified:
    """Draw along the tree until it is left or the text ends, as `hear` says of each token.

    Changes the shaping, and what `hear` changes.

    `logits` are the raw ones of every node, [N, V] float32 on the CPU, and `statistics` theirs;
    `text` is everything up to the root. Raises NonFiniteLogits, NothingToDraw, ProcessorFailed,
    GrammarFailed.
    """
    raw: NDArray[np.float32] = logits.numpy()
    rows = processed(processors, tree, logits, text) if processors else raw
    sampling = request.sampling
    sampled = sampling.temperature > 0.0
    drawn: list[Drawn] = []

    def draw_at(node: int) -> int:
        position = len(text) + tree.depths[node]
        if probe:
            probe(request.request_id, position, raw[node])
        of_node = statistics[node]
        # The walk is one path, so what shapes a row has seen exactly the tokens before it.
        row = shaping.shaped(rows[node]) if shaping else rows[node]
        if sampled:
            token = draw(row, sampling, uniform(sampling.seed, request.choice, position))
        else:
            token = draw(row, sampling, 0.0) if processors or shaping else of_node.top
        forced = shaping.take(token) if shaping else False
        child = tree.children[node].get(token)
        cached = child is not None and bool(tree.origins[child] & Source.SHARED)
        drawn.append(
            Drawn(
                token,
                of_node.logprob(float(raw[node, token])),
                of_node.entropy,
                accepted=child is not None,
                cached=cached,
                forced=forced,
                top=likeliest(raw[node], request.top_logprobs, of_node),
            )
        )
        return token

    walked = walk(tree, draw_at, lambda _token: hear(drawn[-1]))
    return Verified(walked, tuple(drawn))
