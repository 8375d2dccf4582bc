"""A decoder's operations in Triton's kernels; elementwise ones in torch.

Dims: as in `engine.model.operations`; P pieces, L keys of all pieces.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from engine.dfm.header import Architecture
from engine.kernels.triton.attention import rows_per_piece, tree_attention
from engine.kernels.triton.attention_reference import AttentionPlan
from engine.kernels.triton.norm import rms_norm
from engine.kernels.triton.statistics import node_statistics
from engine.model.key_layout import pieces
from engine.model.rows import StepRows
from engine.model.statistics import RawStatistics


class TritonOperations:
    """Batch-invariant by construction: see the kernels."""

    batch_invariant = True

    def __init__(self, architecture: Architecture, null_slot: int, device: torch.device) -> None:
        self._architecture = architecture
        self._null_slot = null_slot
        self._device = device
        self._no_children = torch.empty(1, 0, dtype=torch.int64, device=device)

    def plan(self, step: StepRows) -> AttentionPlan:
        """Lay out the keys of every piece."""
        group = self._architecture.group_size
        return attention_plan(step, group, self._null_slot, self._device)

    def attend(self, plan: AttentionPlan, pool: Tensor, queries: Tensor, mixed: Tensor) -> None:
        """Attend all rows at once."""
        tree_attention(plan, pool, queries, mixed, heads=self._architecture.heads)

    def norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Return the norm, each row by a program of its own."""
        return rms_norm(rows, weight, self._architecture.norm_epsilon)

    def gate(self, gate_up: Tensor) -> Tensor:
        """Return SiLU of the first half times the second."""
        gate, up = gate_up.chunk(2, dim=1)
        return functional.silu(gate).mul_(up)

    def statistics(self, logits: Tensor) -> list[RawStatistics]:
        """Summarise in one pass on the device; only the results are copied."""
        found = node_statistics(logits, self._no_children.expand(len(logits), 0))
        columns = (found.top_ids[:, 0], found.log_sum_exp, found.entropy)
        return [
            # rounding may leave a certain token an entropy of -1e-17; NaN stays NaN
            RawStatistics(top, log_sum_exp, max(entropy, 0.0))
            for top, log_sum_exp, entropy in zip(*(c.tolist() for c in columns), strict=True)
        ]


def attention_plan(
    step: StepRows, group: int, null_slot: int, device: torch.device
) -> AttentionPlan:
    """Cut a step into pieces for `group` query heads, and send them to a device in one copy."""
    found = pieces(step, rows_per_piece(group), null_slot)
    layouts = [piece.layout for piece in found]
    lengths = [len(layout.keys) for layout in layouts]
    firsts = np.cumsum([0, *lengths])
    table = [
        (piece.first_row, piece.rows, first, length, piece.layout.shared)
        for piece, first, length in zip(found, firsts[:-1], lengths, strict=True)
    ]
    parts = (
        *(layout.keys for layout in layouts),
        np.array(table, dtype=np.int64).ravel(),
        *(np.stack([layout.begins, layout.ends], axis=1).ravel() for layout in layouts),
    )
    packed = torch.from_numpy(np.concatenate(parts).astype(np.int32)).to(device)
    sizes = [int(firsts[-1]), 5 * len(table), 2 * len(step.token_ids)]
    keys, rows, spans = torch.split(packed, sizes)
    return AttentionPlan(keys, rows.view(-1, 5), spans.view(-1, 2))
