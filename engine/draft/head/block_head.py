"""A block head at work on one model: features by slot, drafts for several requests at once.

Features lie in slots like keys do, so whatever becomes of a page -- shared, moved, computed
again -- they go with it. What is proposed here is a guess: nothing about it has to be exact.

Dims: n drafts, W window, S slots ahead, V vocabulary of the head, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.draft.head.file import BlockHeadWeights
from engine.draft.head.network import HeadNetwork
from engine.draft.head.shape import BEAM, HeadShape
from engine.draft.proposals import Foreseen

# Prepares one group's weight, [out, in] float32 or blocks [out, in / 32, B]: rows to rows.
Prepare = Callable[[NDArray[np.generic]], Callable[[Tensor], Tensor]]

_WIDTH = 3  # successors proposed of one token
_FLOOR = 0.04  # joint probability below which nothing is looked at


@dataclass(frozen=True, slots=True)
class ModelSide:
    """What a head takes from the model that it serves."""

    embed: Callable[[Sequence[int]], Tensor]  # token ids to [n, D] float32
    # token ids and a range of columns to that part of the LM head, [n, columns] or its blocks
    vocabulary: Callable[[NDArray[np.int64], int, int], NDArray[np.generic]]
    prepare: Prepare


class BlockHead:
    """Features of the slots, and the network. Not thread-safe."""

    def __init__(
        self, shape: HeadShape, weights: BlockHeadWeights, model: ModelSide, slots: int
    ) -> None:
        self.shape = shape
        self.tap_layers = shape.tap_layers
        self._embed = model.embed
        self._token_ids = weights.token_ids.tolist()
        self._place_of = {token: place for place, token in enumerate(self._token_ids)}
        self._fused = _empty(slots, shape.hidden)
        self._injected = _empty(slots, shape.layers * shape.key_values)
        vectors = {name: torch.from_numpy(value) for name, value in weights.vectors.items()}
        self._linears = _prepared(shape, weights, model)
        self._network = HeadNetwork(shape, vectors, self._project)

    @torch.inference_mode()
    def store(self, slots: Tensor, taps: Tensor) -> None:
        """Keep the features of rows [R] whose taps are [T, R, D], at `slots` [R]."""
        fused, injected = self._network.features(taps)
        self._fused[slots], self._injected[slots] = fused.half(), injected.half()

    def move(self, src_slots: Tensor, dst_slots: Tensor) -> None:
        """Copy slots; everything is read before anything is written."""
        for kept in (self._fused, self._injected):
            kept[dst_slots] = kept[src_slots]

    @torch.inference_mode()
    def foresee(
        self, roots: Sequence[int], windows: Sequence[NDArray[np.int64]], depth_limit: int
    ) -> list[list[Foreseen]]:
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
        at_slots, shown = torch.from_numpy(slots), torch.from_numpy(visible)
        last = self._fused[at_slots[:, -1]].float() * shown[:, -1:]
        window = self._injected[at_slots].float()
        depths = min(depth_limit, shape.slots)
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
            top, chosen = scores.topk(_WIDTH, dim=1)
            probabilities = (top - scores.logsumexp(1, keepdim=True)).exp().tolist()
            grown: list[list[tuple[int, int, int, float]]] = [[] for _ in roots]
            for (at, token, _, joint), found_places, likely in zip(
                beam, chosen.tolist(), probabilities, strict=True
            ):
                for place, probability in zip(found_places, likely, strict=True):
                    if joint * probability >= _FLOOR:
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
        computes = self._linears[name]
        if len(computes) == 1:
            return computes[0](rows[:, 0])[:, None]
        return torch.stack([compute(rows[:, g]) for g, compute in enumerate(computes)], dim=1)


def _empty(slots: int, width: int) -> Tensor:
    # calloc: memory is taken only once it is written, unlike with torch.zeros
    return torch.from_numpy(np.zeros((slots, width), np.float16))


def _distinct(nodes: list[tuple[int, int, int, float]]) -> list[tuple[int, int, int, float]]:
    """Keep the likeliest of the nodes that are the same token."""
    kept: dict[int, tuple[int, int, int, float]] = {}
    for node in nodes:
        kept.setdefault(node[1], node)
    return list(kept.values())


def _prepared(
    shape: HeadShape, weights: BlockHeadWeights, model: ModelSide
) -> dict[str, list[Callable[[Tensor], Tensor]]]:
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
