"""A plan and its trees, laid out as the rows that the decoder computes.

One request's rows are its pending tokens, then the tree's nodes but the root, which is the last
pending token:

    slots    committed ......... | pending 0 1 .. k-1 | node 1, 2, .. N-1
    sees     everything committed, the pending ones up to itself, and its own ancestors

Dims: k pending rows, N nodes, R rows of the step, Q rows whose logits are wanted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.graph.tree import TokenTree, bare
from engine.model.rows import Segment, StepRows
from engine.records import Work
from engine.scheduler.plan import Plan, Turn
from engine.scheduler.sequence import Sequence as LiveSequence


@dataclass(frozen=True, slots=True)
class Part:
    """One request's part in a step: its planned rows and the tree that hangs from the last."""

    turn: Turn
    tree: TokenTree | None  # null where no token is drawn

    @property
    def nodes(self) -> int:
        """Drafted nodes, the root not counted."""
        return len(self.tree) - 1 if self.tree else 0

    @property
    def work(self) -> Work:
        """What computing the part costs. Each row is counted once.

        The prompt's last row is prefill, though it is also the root of the first block's tree.
        """
        sequence, start = self.turn.sequence, self.turn.sequence.computed
        positions = range(start, start + self.turn.rows)
        prompt_length = len(sequence.request.prompt_ids)
        again = [position for position in positions if position < sequence.computed_once]
        own = positions[len(again) :]
        prefill = sum(position < prompt_length for position in own)
        depths = self.tree.depths[1:] if self.tree else ()
        return Work(
            prefill_tokens=prefill,
            recomputed_tokens=len(again),
            verified_nodes=len(own) - prefill + self.nodes,
            kv_read_tokens=sum(at + 1 for at in own)
            + sum(positions.stop + depth for depth in depths),
            recomputed_kv_tokens=sum(at + 1 for at in again),
        )


def parts_of(
    plan: Plan, trees: Mapping[LiveSequence, TokenTree], held: Set[LiveSequence]
) -> list[Part]:
    """Return what each planned turn computes, but for those held back; undrafted ones are bare."""
    parts = []
    for turn in plan.turns:
        if turn.sequence in held:
            continue
        tree = None
        if turn.draws:
            tree = trees.get(turn.sequence) or bare(turn.sequence.tokens[-1])
        parts.append(Part(turn, tree))
    return parts


def step_rows(parts: Sequence[Part]) -> StepRows:
    """Lay out a step. Logits are asked for every tree's nodes, in order, the root first."""
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[NDArray[np.int64]] = []
    segments: list[Segment] = []
    logit_rows: list[int] = []
    for part in parts:
        sequence, start, pending = part.turn.sequence, part.turn.sequence.computed, part.turn.rows
        first_row, stop = len(token_ids), start + pending
        token_ids += sequence.tokens[start:stop]
        positions += range(start, stop)
        if part.tree:
            token_ids += part.tree.tokens[1:]
            positions += [stop - 1 + depth for depth in part.tree.depths[1:]]
            logit_rows += range(first_row + pending - 1, len(token_ids))
        own_slots = sequence.table.slots(start, stop + part.nodes)
        slots.append(own_slots)
        segments.append(
            Segment(
                committed=torch.from_numpy(sequence.table.slots(0, start)),
                tail=torch.from_numpy(_tail(own_slots, pending, part.tree)),
            )
        )
    return StepRows(
        token_ids=_tensor(token_ids),
        positions=_tensor(positions),
        slots=torch.from_numpy(np.concatenate(slots)),
        segments=tuple(segments),
        logit_rows=_tensor(logit_rows),
    )


def _tensor(values: list[int]) -> Tensor:
    # several times as fast as torch.tensor
    return torch.from_numpy(np.array(values, np.int64))


def _tail(slots: NDArray[np.int64], pending: int, tree: TokenTree | None) -> NDArray[np.int64]:
    """Return each row's own path, itself last, right-padded with -1: [rows, longest]."""
    #                     before the root | root, nodes
    #   before the root        triangle   |     -1
    #   root, nodes       all, every row  |    paths
    before = pending - 1
    paths = _paths(slots[before:], tree)
    if not before:
        return paths
    tail = np.full((before + len(paths), before + paths.shape[1]), -1, np.int64)
    tail[:before, :before] = np.where(np.tri(before, dtype=np.bool_), slots[:before], -1)
    tail[before:, :before] = slots[:before]
    tail[before:, before:] = paths
    return tail


def _paths(slots: NDArray[np.int64], tree: TokenTree | None) -> NDArray[np.int64]:
    """Return the paths from a root to each node, right-padded with -1; slots have the root first.

    Where no tree hangs from it, the last pending row stands alone.
    """
    if tree is None or len(tree) == 1:
        return slots.reshape(1, 1)
    width = tree.depth + 1
    paths: list[list[int]] = []
    # a few short rows, for which lists are faster than arrays; a parent comes before its children
    for slot, parent in zip(slots.tolist(), tree.parents, strict=True):
        paths.append([*paths[parent], slot] if paths else [slot])
    return np.array([path + [-1] * (width - len(path)) for path in paths], np.int64)
