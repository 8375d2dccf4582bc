"""A block head at work on one model: features by slot, drafts for several requests at once.

Features lie in slots like keys do, so whatever becomes of a page -- shared, moved, computed
again -- they go with it. What is proposed here is a guess: nothing about it has to be exact.

Dims: n drafts, W window, S slots ahead, V vocabulary of the head, D hidden.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.draft.head.file import BlockHeadWeights
from engine.draft.head.network import HeadNetwork
from engine.draft.head.shape import BEAM, HeadShape
from engine.draft.proposals import Foreseen


class Projection(Protocol):
    """One group's prepared weight."""

    def project(self, rows: Tensor) -> Tensor:
        """Multiply rows [m, inputs]: [m, outputs]."""


# From [out, in] float32 or blocks [out, in / 32, B].
Prepare = Callable[[NDArray[np.generic]], Projection]

WIDTH = 3  # successors proposed of one token
FLOOR = 0.04  # joint probability below which nothing is looked at
_TIMED = 5  # drafts


# Drafts behind roots from taps [n, T * D] of the tokens before, where there are any, so deep.
Native = Callable[[Sequence[int], Tensor, NDArray[np.bool_], int], Sequence[Sequence[Foreseen]]]


@dataclass(frozen=True, slots=True)
class ModelSide:
    """What a head takes from the model that it serves."""

    embed: Callable[[Sequence[int]], Tensor]  # token ids to [n, D] float32
    # token ids and a range of columns to that part of the LM head, [n, columns] or its blocks
    vocabulary: Callable[[NDArray[np.int64], int, int], NDArray[np.generic]]
    prepare: Prepare


class BlockHead:
    """What is kept of the slots, and the network. Not thread-safe.

    Where the layers attend, fused features and the keys and values made of them are kept of every
    slot; where they do not, only the taps, of which few are ever looked at.
    """

    def __init__(
        self,
        shape: HeadShape,
        weights: BlockHeadWeights,
        model: ModelSide,
        slots: int,
    ) -> None:
        self.shape = shape
        self.tap_layers = shape.tap_layers
        self.native: Native | None = None  # computes drafts instead of the network, when set
        self._embed = model.embed
        self._token_ids = weights.token_ids.tolist()
        self._place_of = {token: place for place, token in enumerate(self._token_ids)}
        widths = [shape.hidden, shape.layers * shape.key_values]
        if not shape.attends:
            widths = [len(shape.tap_layers) * shape.hidden]
        self._kept = [_empty(slots, width) for width in widths]
        vectors = {name: torch.from_numpy(value) for name, value in weights.vectors.items()}
        self.linears = _prepared(shape, weights, model)  # of each group
        self._network = HeadNetwork(shape, vectors, self._project)

    @torch.inference_mode()
    def store(self, slots: Tensor, taps: Tensor) -> None:
        """Keep what rows [R] with taps [T, R, D] are worth later, at `slots` [R]."""
        if self.shape.attends:
            values: tuple[Tensor, ...] = self._network.features(taps)
        else:
            values = (taps.transpose(0, 1).flatten(1),)
        for kept, value in zip(self._kept, values, strict=True):
            kept[slots] = value.bfloat16()

    def draft_ms(self) -> float:
        """Measure what a draft for one request takes. Changes nothing."""
        spent = []
        for _ in range(_TIMED):
            began = time.perf_counter()
            self.foresee([0], [np.zeros(1, np.int64)], self.shape.slots)
            spent.append(time.perf_counter() - began)
        return min(spent) * 1e3

    def move(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Copy slots; everything is read before anything is written."""
        for kept in self._kept:
            kept[dst_slots] = kept[src_slots]

    @torch.inference_mode()
    def foresee(
        self, roots: Sequence[int], windows: Sequence[NDArray[np.int64]], depth_limit: int
    ) -> Sequence[Sequence[Foreseen]]:
        """Draft behind each root token; `windows` are the slots of what was committed before it."""
        shape = self.shape
        count, width = len(roots), shape.window if shape.attends else 1
        slots = np.zeros((count, width), np.int64)
        visible = np.zeros((count, width), np.bool_)
        for at, committed in enumerate(windows):
            own = committed[-width:]
            if len(own):
                slots[at, -len(own) :] = own
                visible[at, -len(own) :] = True
        depths = min(depth_limit, shape.slots)
        kept = [values[torch.from_numpy(slots)].float() for values in self._kept]
        if self.native is not None:
            return self.native(roots, kept[0][:, 0], visible[:, 0], depths)
        shown = torch.from_numpy(visible)
        if shape.attends:
            fused, window = kept
        else:
            taps = kept[0].view(count, -1, shape.hidden).transpose(0, 1)
            fused, window = (part[:, None] for part in self._network.features(taps))
        last = fused[:, -1] * shown[:, -1:]
        hidden = self._network.slots(self._embed(roots), last, window, shown)[:, :depths]
        logits = self._network.logits(hidden.flatten(0, 1)).view(count, depths, -1)
        return self._unfold(roots, hidden, logits)

    def _unfold(self, roots: Sequence[int], hidden: Tensor, logits: Tensor) -> list[list[Foreseen]]:
        """Score successors depth by depth, of the likeliest tokens only."""
        found: list[list[Foreseen]] = [[] for _ in roots]
        unknown = len(self._token_ids)
        # (draft, token, its place in the vocabulary, joint probability)
        beam = [(at, root, self._place_of.get(root, unknown), 1.0) for at, root in enumerate(roots)]
        for depth in range(1, logits.shape[1] + 1):
            places = torch.tensor([place for _, _, place, _ in beam])
            drafts = torch.tensor([at for at, _, _, _ in beam])
            own = hidden[drafts, depth - 1]
            scores = logits[drafts, depth - 1] + self._network.succession(own, places)
            top, chosen = scores.topk(WIDTH, dim=1)
            probabilities = (top - scores.logsumexp(1, keepdim=True)).exp().tolist()
            grown: list[list[tuple[int, int, int, float]]] = [[] for _ in roots]
            for (at, token, _, joint), found_places, likely in zip(
                beam, chosen.tolist(), probabilities, strict=True
            ):
                for place, probability in zip(found_places, likely, strict=True):
                    if joint * probability >= FLOOR:
                        successor = self._token_ids[place]
                        found[at].append(Foreseen(depth, token, successor, probability))
                        grown[at].append((at, successor, place, joint * probability))
            beam = [
                node
                for nodes in grown
                for node in _distinct(sorted(nodes, key=lambda node: -node[3]))[:BEAM]
            ]
            if not beam:
                break
        return found

    def _project(self, name: str, rows: Tensor) -> Tensor:
        parts = self.linears[name]
        if len(parts) == 1:
            return parts[0].project(rows[:, 0])[:, None]
        return torch.stack([part.project(rows[:, g]) for g, part in enumerate(parts)], dim=1)


def _empty(slots: int, width: int) -> Tensor:
    # calloc: memory is taken only once it is written, unlike with torch.zeros
    return torch.from_numpy(np.zeros((slots, width), np.int16)).view(torch.bfloat16)


def _distinct(nodes: list[tuple[int, int, int, float]]) -> list[tuple[int, int, int, float]]:
    """Keep the likeliest of the nodes that are the same token."""
    kept: dict[int, tuple[int, int, int, float]] = {}
    for node in nodes:
        kept.setdefault(node[1], node)
    return list(kept.values())


def _prepared(
    shape: HeadShape, weights: BlockHeadWeights, model: ModelSide
) -> dict[str, list[Projection]]:
    groups = shape.groups
    linears = {
        name: [model.prepare(part) for part in np.split(weight, groups)]
        for name, weight in weights.linears.items()
    }
    width = shape.hidden // groups
    linears["vocabulary"] = [
        model.prepare(model.vocabulary(ids.astype(np.int64), group * width, (group + 1) * width))
        for group, ids in enumerate(np.split(weights.token_ids, groups))
    ]
    return linears
