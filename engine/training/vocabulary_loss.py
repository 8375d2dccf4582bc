"""Cross-entropy over a frozen vocabulary, without keeping its logits around.

The gradient is computed along with the loss, a few rows at a time while their logits are still in
the processor's cache, as in Liger's fused linear cross-entropy (arXiv 2410.10989).

Dims: R rows, G groups, D hidden, r rank, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ROWS = 128  # whose logits are looked at together


class _VocabularyLoss(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 -- as torch calls it
        context: Any,
        hidden: Tensor,
        before: Tensor,
        successors: Tensor,
        vocabulary: Tensor,
        targets: Tensor,
        weights: Tensor,
    ) -> Tensor:
        kind, width = vocabulary.dtype, vocabulary.shape[2]
        matrices = torch.cat([vocabulary, successors.to(kind)], dim=2)
        rows = torch.cat([hidden.to(kind), before.to(kind)], dim=2).transpose(0, 1).contiguous()
        gradient = torch.empty(len(targets), successors.shape[0] * successors.shape[1], dtype=kind)
        loss = torch.zeros((), dtype=torch.float64)
        for first in range(0, len(targets), _ROWS):
            part = slice(first, first + _ROWS)
            own, weight = targets[part, None], weights[part, None]
            parts = zip(rows[:, part], matrices, strict=True)
            scores = torch.cat([torch.mm(few, matrix.t()) for few, matrix in parts], dim=1).float()
            right, largest = scores.gather(1, own), scores.amax(1, keepdim=True)
            shares = scores.sub_(largest).exp_()
            total = shares.sum(1, keepdim=True)
            loss += ((total.log() + largest - right) * weight).sum()
            gradient[part] = shares.mul_(weight / total).scatter_add_(1, own, -weight)
        slices = gradient.chunk(len(matrices), dim=1)
        inputs = [torch.mm(own, matrix) for own, matrix in zip(slices, matrices, strict=True)]
        joined = torch.stack(inputs, dim=1).float()
        outputs = [torch.mm(own.t(), few[:, width:]) for own, few in zip(slices, rows, strict=True)]
        context.save_for_backward(
            joined[..., :width], joined[..., width:], torch.stack(outputs).float()
        )
        return loss.to(hidden.dtype)

    @staticmethod
    def backward(context: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (output,) = outputs
        return (*(part * output for part in context.saved_tensors), None, None, None)


def vocabulary_loss(
    hidden: Tensor,
    before: Tensor,
    successors: Tensor,
    *,
    vocabulary: Tensor,
    targets: Tensor,
    weights: Tensor,
) -> Tensor:
    """Return the weighted sum of rows' cross-entropies, a scalar.

    `hidden` [R, G, D / G], `before` [R, G, r / G] and `successors` [G, V / G, r / G], float32, get
    gradients. The frozen `vocabulary` [G, V / G, D / G] says in what kind products are computed;
    one softmax is over all groups' logits. `targets` [R] are places in it, `weights` [R].
    """
    loss: Tensor = _VocabularyLoss.apply(hidden, before, successors, vocabulary, targets, weights)  # type: ignore[no-untyped-call]
    return loss
