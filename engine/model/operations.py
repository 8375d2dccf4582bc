"""What a decoder computes otherwise than by projecting, as the processors need it.

Dims: R rows, Q wanted rows, H heads, G kv heads, D head dim, S slots, I intermediate width,
V vocabulary.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from engine.dfm.header import Architecture
from engine.model.attention import Attention, Bucket
from engine.model.rows import StepRows
from engine.model.statistics import RawStatistics, raw_statistics

# below this many elements torch runs an operation on one thread; above it, it may end a thread's
# share in the middle of a vector, where exp is computed by other code
_SERIAL_ELEMENTS = 32_768


class Operations(Protocol):
    """Row by row: what a row gives does not depend on the others."""

    batch_invariant: bool

    def plan(self, step: StepRows) -> Any:
        """Prepare a step's attention, once for all layers."""

    def attend(self, plan: Any, pool: Tensor, queries: Tensor, mixed: Tensor) -> None:
        """Attend in one layer and write the step's rows of `mixed` [R, H * D].

        `pool` [2, G, S, D] holds keys and values, `queries` [R, H * D] are rotated and scaled.
        """

    def norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Return rows [R, K] over their root mean square, times `weight` [K]."""

    def gate(self, gate_up: Tensor) -> Tensor:
        """Return SiLU of the first half of [R, 2 * I] times the second. May overwrite it."""

    def statistics(self, logits: Tensor) -> list[RawStatistics]:
        """Summarise rows of raw logits [Q, V] float32."""


class CpuOperations:
    """In torch; the attention's row counts are probed."""

    def __init__(self, architecture: Architecture, null_slot: int, device: torch.device) -> None:
        self._architecture = architecture
        self._attention = Attention(architecture, null_slot, device)
        self.batch_invariant = self._attention.batch_invariant

    def plan(self, step: StepRows) -> tuple[Bucket, ...]:
        """Sort the step's requests into buckets."""
        return self._attention.plan(step)

    def attend(
        self, plan: tuple[Bucket, ...], pool: Tensor, queries: Tensor, mixed: Tensor
    ) -> None:
        """Attend one bucket after the other."""
        for bucket in plan:
            self._attention.attend(bucket, pool, queries, mixed)

    def norm(self, rows: Tensor, weight: Tensor) -> Tensor:
        """Return the norm in half as many operations as `functional.rms_norm` takes."""
        length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        scale = length.square_().mul_(1 / self._architecture.hidden)
        scale = scale.add_(self._architecture.norm_epsilon).rsqrt_()
        return (rows * scale).mul_(weight)

    def gate(self, gate_up: Tensor) -> Tensor:
        """Compute in pieces that each run on one thread."""
        gate, up = gate_up.view(len(gate_up), 2, -1).unbind(1)
        silu_(gate)
        return gate * up

    def statistics(self, logits: Tensor) -> list[RawStatistics]:
        """Summarise in numpy, row by row."""
        return raw_statistics(logits.numpy())


def silu_(gate: Tensor) -> None:
    """Apply SiLU in place to [R, I], in pieces that each run on one thread."""
    if gate.numel() < _SERIAL_ELEMENTS:
        functional.silu(gate, inplace=True)
        return
    for piece in torch.split(gate, max(1, (_SERIAL_ELEMENTS - 1) // gate.shape[1])):
        functional.silu(piece, inplace=True)


def open_operations(
    architecture: Architecture, null_slot: int, device: torch.device, *, triton: bool
) -> Operations:
    """Return Triton's operations where they are asked for, torch's elsewhere."""
    if not triton:
        return CpuOperations(architecture, null_slot, device)
    # only here, so that nothing else imports Triton
    from engine.model.triton_operations import TritonOperations  # noqa: PLC0415

    return TritonOperations(architecture, null_slot, device)
