"""The block head itself, one definition for training and for serving.

What differs between the two is how a projection is computed, so projections are passed in:
`project(name, rows)`, rows by groups. Plain attention, in torch.

    slot's input  its own vector + the root's embedding + the last committed token's features
    slots         mask 1 .. mask S, all at once; where the layers attend, they see each other,
                  the root, which has a slot of its own then, and the window
    window        W features of committed tokens: keys and values, made when they were verified

Dims: n drafts, R rows, T taps, D hidden, G groups, H heads, K kv heads, d head dim, W window,
S slots, L layers, V vocabulary of the head, r rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional

from engine.draft.head.shape import HeadShape

# A projection: rows [R, G, inputs / G] to [R, G, outputs / G].
Project = Callable[[str, Tensor], Tensor]

_EPSILON = 1e-5


class HeadNetwork:
    """Computes with vectors and projections that somebody else holds."""

    def __init__(self, shape: HeadShape, vectors: Mapping[str, Tensor], project: Project) -> None:
        self.shape = shape
        self._vectors = vectors
        self._project = project

    def features(self, taps: Tensor) -> tuple[Tensor, Tensor]:
        """Fuse taps [T, R, D] of committed tokens.

        Returns the fused features [R, D], and every layer's keys and values of them [R, L * 2Kd].
        """
        shape = self.shape
        normed = functional.rms_norm(taps, (shape.hidden,), eps=_EPSILON)
        scale = self._vectors["feature_scale"].view(len(taps), 1, shape.hidden)
        grouped = (normed * scale).view(len(taps), -1, shape.groups, shape.hidden // shape.groups)
        rows = grouped.permute(1, 2, 0, 3).flatten(2)
        fused = self._norm(self._linear("features", rows), "fused_norm")
        if not shape.attends:
            return fused, fused[:, :0]
        injected = [
            self._linear(f"{layer}.injected", self._grouped(fused)) for layer in range(shape.layers)
        ]
        return fused, torch.cat(injected, dim=1)

    def slots(self, roots: Tensor, last: Tensor, window: Tensor, visible: Tensor) -> Tensor:
        """Denoise the slots behind each root: [n, S, D], ready for the vocabulary.

        `roots` [n, D] are embeddings, `last` [n, D] the fused features of the token before;
        `window` [n, W, L * 2Kd] the keys and values of the tokens before, the last of them last;
        `visible` [n, W] says which there are.
        """
        shape = self.shape
        count = len(roots)
        known = self._linear("root", self._grouped(roots))
        known = known + self._linear("last", self._grouped(last))
        hidden = known[:, None] + self._vectors["slots"]
        for layer in range(shape.layers):
            if shape.attends:
                start = layer * shape.key_values
                injected = window[..., start : start + shape.key_values]
                hidden = self._attended(layer, hidden, injected, visible)
            rows = hidden.flatten(0, 1)
            normed = self._norm(rows, f"{layer}.mlp_norm")
            gate_up = self._project(f"{layer}.gate_up", self._grouped(normed))
            gate, up = gate_up.chunk(2, dim=2)
            rows = rows + self._project(f"{layer}.down", functional.silu(gate) * up).flatten(1)
            hidden = rows.view(count, -1, shape.hidden)
        return self._norm(hidden, "final_norm")

    def logits(self, slots: Tensor) -> Tensor:
        """Return [R, V] of rows [R, D], the groups' vocabularies one after the other."""
        return self._linear("vocabulary", self._grouped(slots))

    def succession(self, slots: Tensor, predecessors: Tensor) -> Tensor:
        """Return what the tokens before, places in the vocabulary [R], add to logits [R, V]."""
        return self._linear("successors", self._grouped(self.preceding(slots, predecessors)))

    def preceding(self, slots: Tensor, predecessors: Tensor) -> Tensor:
        """Return features [R, r] of tokens before; how much each counts is up to slots [R, D]."""
        opened = 1.0 + self._linear("gate", self._grouped(slots))
        return self._vectors["predecessors"][predecessors] * opened

    def _attended(self, layer: int, hidden: Tensor, injected: Tensor, visible: Tensor) -> Tensor:
        """Add to slots [n, P, D] what they attend to; after the last layer without the root's."""
        count = len(hidden)
        first = 1 if layer == self.shape.layers - 1 else 0  # it proposes nothing
        normed = self._norm(hidden, f"{layer}.norm").flatten(0, 1)
        qkv = self._linear(f"{layer}.qkv", self._grouped(normed)).view(count, hidden.shape[1], -1)
        mixed = self._mixed(layer, qkv, injected, visible, first)
        added = self._linear(f"{layer}.output", self._grouped(mixed))
        return hidden[:, first:] + added.view(count, -1, self.shape.hidden)

    def _mixed(
        self, layer: int, qkv: Tensor, injected: Tensor, visible: Tensor, first: int
    ) -> Tensor:
        """Return the slots' mixed values [n * (P - first), Hd], heads by groups."""
        shape = self.shape
        count, slots, _ = qkv.shape
        per_group = (shape.heads + 2 * shape.kv_heads) // shape.groups
        parts = qkv.view(count, slots, shape.groups, per_group, shape.head_dim)
        sizes = [shape.heads // shape.groups] + 2 * [shape.kv_heads // shape.groups]
        queries, keys, values = (part.flatten(2, 3) for part in torch.split(parts, sizes, dim=3))
        window = injected.view(count, -1, shape.groups, 2, sizes[1], shape.head_dim)
        keys = torch.cat([window[:, :, :, 0].flatten(2, 3), keys], dim=1)
        values = torch.cat([window[:, :, :, 1].flatten(2, 3), values], dim=1)
        bias = self._vectors[f"{layer}.distance"][:, first:]
        seen = functional.pad(visible, (0, slots), value=True)
        mask = bias.masked_fill(~seen[:, None, None], -torch.inf)
        mixed = functional.scaled_dot_product_attention(
            queries[:, first:].transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask.to(queries.dtype),
            enable_gqa=True,
        )
        return mixed.transpose(1, 2).flatten(2).flatten(0, 1)

    def _linear(self, name: str, rows: Tensor) -> Tensor:
        return self._project(name, rows).flatten(1)

    def _grouped(self, rows: Tensor) -> Tensor:
        return rows.reshape(len(rows), self.shape.groups, -1)

    def _norm(self, rows: Tensor, name: str) -> Tensor:
        width = self.shape.hidden // self.shape.groups
        parts = rows.float().reshape(*rows.shape[:-1], -1, width)
        normed = functional.rms_norm(parts, (width,), eps=_EPSILON).flatten(-2)
        return normed * self._vectors[name]
