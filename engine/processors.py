"""Users' logits processors, applied block by block, each node along its own path.

Raw log-probabilities and entropies are taken before any of this: a processor changes what is
drawn, never what the meter records.

Dims: P paths, L nodes of a path, N nodes of the tree, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import EngineError
from engine.graph.tree import TokenTree

LogitsProcessor = Callable[..., Tensor]


class ProcessorFailed(EngineError):
    """A logits processor raised, or returned something that isn't verifier logits."""


class DFlashLogitsProcessor:
    """Changes the verifier's logits before a token is drawn. Subclass it, or pass any callable.

    `draft_logits` and `verifier_logits` are [batch, draft_len, vocab] float32, `batch` being paths
    through one request's candidates and `draft_len` the nodes of a path, the last emitted token
    first. `verifier_logits[b, j]` are the model's raw logits after node j of path b;
    `draft_logits[b, j]` are the log-weights of what was drafted there, minus infinity elsewhere.
    Return verifier logits of the same shape; both arguments may be changed in place. A row's result
    may depend on that row and on the path up to it, never on other rows: drafting must not change
    what is emitted.
    """

    stateful: bool = False
    """Set it where a call depends on earlier calls: the request then runs undrafted, one row a
    call, in order."""

    wants_token_ids: bool = False
    """Set it to be called with `token_ids=` too, [batch, context + draft_len] int64: row j was
    scored after `token_ids[b, : context + j + 1]`, prompt included."""

    def __call__(self, draft_logits: Tensor, verifier_logits: Tensor) -> Tensor:
        """Return the logits to draw from; unchanged here."""
        return verifier_logits


def runs_undrafted(processors: Iterable[LogitsProcessor]) -> bool:
    """Whether a request with these processors must be decoded one row at a time."""
    return any(getattr(processor, "stateful", False) for processor in processors)


def processed(
    processors: Sequence[LogitsProcessor],
    tree: TokenTree,
    logits: Tensor,
    context: Sequence[int],
) -> NDArray[np.float32]:
    """Return the logits [N, V] of every node after all processors, applied in order.

    `logits` are the raw ones [N, V]; `context` is the request's text, the root last. Where two
    paths share a node, its rows are equal by the processors' contract, and the first is taken.
    Raises ProcessorFailed.
    """
    result = torch.empty_like(logits)
    seen: set[int] = set()
    paths = sorted(tree.paths(), key=len)
    for _, group in groupby(paths, key=len):
        batch = list(group)
        rows = torch.tensor(batch)  # [P, L]
        changed = _apply(processors, tree, batch, logits[rows], context)
        for path, of_path in zip(batch, changed, strict=True):
            for node, row in zip(path, of_path, strict=True):
                if node not in seen:
                    seen.add(node)
                    result[node] = row
    return result.numpy()


def _apply(
    processors: Sequence[LogitsProcessor],
    tree: TokenTree,
    paths: list[list[int]],
    logits: Tensor,
    context: Sequence[int],
) -> Tensor:
    """Run all processors over paths of one length; `logits` [P, L, V] may be changed."""
    drafted = torch.full_like(logits, -torch.inf)
    for path_index, path in enumerate(paths):
        for at, node in enumerate(path):
            for token, child in tree.children[node].items():
                drafted[path_index, at, token] = float(np.log(tree.weights[child]))
    token_ids = torch.tensor(
        [[*context, *(tree.tokens[node] for node in path[1:])] for path in paths]
    )
    shape = logits.shape
    for processor in processors:
        name = getattr(processor, "__name__", type(processor).__name__)
        extra = {"token_ids": token_ids} if getattr(processor, "wants_token_ids", False) else {}
        try:
            logits = processor(drafted.clone(), logits, **extra)
        except Exception as error:
            raise ProcessorFailed(f"the logits processor {name} raised {error!r}") from error
        if not isinstance(logits, Tensor) or logits.shape != shape:
            raise ProcessorFailed(
                f"the logits processor {name} must return a tensor of shape {tuple(shape)}"
            )
    return logits.detach().to("cpu", torch.float32)
