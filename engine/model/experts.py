"""A mixture of experts: each row goes through the few feed-forward blocks that its router chooses.

A router's choice is its k largest logits, the lower expert of equals; an expert's weight is its
softmax over all, over their sum for those chosen where the model wants that. A row's experts are
added in the order of their numbers, so that nothing depends on which other rows there are. As in
Mixtral (Jiang et al. 2024); a shared expert, gated by a sigmoid, as in Qwen2-MoE. In a hashed
layer, as DeepSeek-V4 has them, a table names a token's experts and the router only weighs them:
known before anything is computed, they are read from the disk meanwhile.

Dims: R rows, padding among them; n rows of the step, E experts, k of a row, I width of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from engine.cache.experts import ExpertCache
from engine.dfm.header import Experts
from engine.kernels.linear import Linear, project
from engine.kernels.tiles import cover

Gate = Callable[[Tensor], Tensor]  # [m, 2 * I] to [m, I]


@dataclass(frozen=True, slots=True)
class FeedForward:
    """A SwiGLU block: of a dense layer, or an expert."""

    gate_up: Linear
    down: Linear

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The projections that all rows of a step go through."""
        return (self.gate_up, self.down)

    def alone(self, rows: Tensor, gate: Gate) -> Tensor:
        """Compute any number of rows [m, hidden], padded to row tiles of its own."""
        inner = gate(_any_count(self.gate_up, rows))
        return _any_count(self.down, inner)


@dataclass(frozen=True, slots=True)
class Mixture:
    """One layer's experts; where there is a shared one, the router's last row is its gate."""

    layer: int
    shape: Experts
    router: Linear
    shared: FeedForward | None
    cache: ExpertCache[FeedForward]
    table: Tensor | None  # [V, k] int64: each token's experts, ascending; null where rows choose

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The projections that all rows of a step go through."""
        return (self.router, *(self.shared.linears if self.shared else ()))

    def foresee(self, tokens: Tensor) -> None:
        """Have the experts read that tokens [n] are bound for, if a table says so."""
        if self.table is not None:
            self.cache.foresee(self.layer, np.unique(self.table[tokens].numpy()))

    def compute(self, rows: Tensor, tokens: Tensor, tiles: tuple[int, ...], gate: Gate) -> Tensor:
        """Return the mixed output of rows [R, hidden] in `tiles`; zeros behind `tokens` [n].

        `gate` is SwiGLU's.
        """
        count = len(tokens)
        logits = project(self.router, rows, tiles)[:count]
        named = None if self.table is None else self.table[tokens]
        chosen, weights = routed(logits[:, : self.shape.count], self.shape, named)
        mixed = torch.zeros_like(rows)
        numbers, places = _by_expert(chosen.numpy())
        flat = weights.flatten()
        prepared = self.cache.take(
            self.layer, numbers, np.array([len(own) for own in places], dtype=np.int64)
        )
        for expert, own in zip(prepared, places, strict=True):
            place = torch.from_numpy(own)
            row = place // self.shape.used
            output = expert.alone(rows.index_select(0, row), gate)
            mixed.index_add_(0, row, output.mul_(flat[place, None]))
        if self.shared is not None:
            inner = gate(project(self.shared.gate_up, rows, tiles))
            output = project(self.shared.down, inner, tiles)
            mixed[:count] += output[:count].mul_(sigmoid(logits[:, -1]))
        return mixed


def routed(logits: Tensor, shape: Experts, named: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return each row's experts [n, k], ascending, and their weights, of router logits [n, E].

    They are the ones `named` [n, k] where a table has chosen.
    """
    chosen = named
    if chosen is None:
        # of the logits: two may differ where their softmax does not
        best = torch.sort(logits, dim=1, descending=True, stable=True).indices[:, : shape.used]
        chosen = best.sort(dim=1).values
    weights = torch.softmax(logits, dim=1).gather(1, chosen)
    if shape.normalised:
        # column by column: a reduction's order could depend on the number of rows
        total = weights[:, :1].clone()
        for column in range(1, shape.used):
            total += weights[:, column : column + 1]
        weights = weights / total
    return chosen, weights


def sigmoid(logits: Tensor) -> Tensor:
    """Return the sigmoid of logits [n] as [n, 1].

    As a softmax, which torch computes row by row; elementwise, the last few would be computed by
    other code than the rest.
    """
    return torch.softmax(functional.pad(logits[:, None], (0, 1)), dim=1)[:, :1]


def _by_expert(chosen: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Return the experts that occur, ascending, and for each its places in `chosen`, flattened."""
    flat = chosen.ravel()
    order = np.argsort(flat, kind="stable")
    numbers, firsts = np.unique(flat[order], return_index=True)
    return numbers, np.split(order, firsts[1:])


def _any_count(linear: Linear, rows: Tensor) -> Tensor:
    count = len(rows)
    tiles = cover(count, linear.row_tiles)
    return project(linear, functional.pad(rows, (0, 0, 0, sum(tiles) - count)), tiles)[:count]
