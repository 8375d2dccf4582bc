"""What one step computes: rows of tokens, grouped by request.

Dims: R rows of the step, n rows of one request, P its committed tokens, T its longest tail,
Q rows whose logits are wanted. Slots are indices into `engine.cache.storage.KvStorage`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Segment:
    """The keys that one request's rows may see.

    A prefill chunk of n rows has a lower-triangular tail [n, n]; a token tree has as many columns
    as its deepest node has ancestors, itself counted.
    """

    committed: Tensor  # [P] int64: slots of positions 0..P-1
    tail: Tensor  # [n, T] int64: slots of a row's own path, itself last, right-padded with -1


@dataclass(frozen=True, slots=True)
class StepRows:
    """Everything a forward pass needs to know. Segments follow each other in row order."""

    token_ids: Tensor  # [R] int64
    positions: Tensor  # [R] int64, absolute
    slots: Tensor  # [R] int64: where each row's key and value are written
    segments: tuple[Segment, ...]
    logit_rows: Tensor  # [Q] int64: indices into the rows
