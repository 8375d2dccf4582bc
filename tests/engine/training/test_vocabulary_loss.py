"""The fused loss against torch's own cross-entropy, gradients included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from engine.training import vocabulary_loss as module
from engine.training.vocabulary_loss import vocabulary_loss


@settings(max_examples=25)
@given(
    rows=st.integers(1, 40),
    groups=st.integers(1, 3),
    together=st.integers(1, 16),
    seed=st.integers(0, 2**16),
)
def test_loss_and_gradients_are_those_of_torch(
    rows: int, groups: int, together: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    size, width, rank = 7, 6, 4

    def parts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        own = torch.Generator().manual_seed(seed + 1)
        return (
            torch.randn(rows, groups, width, generator=own, requires_grad=True),
            torch.randn(rows, groups, rank, generator=own, requires_grad=True),
            torch.randn(groups, size, rank, generator=own, requires_grad=True),
        )

    vocabulary = torch.randn(groups, size, width, generator=generator)
    targets = torch.randint(groups * size, (rows,), generator=generator)
    weights = torch.rand(rows, generator=generator)
    hidden, before, successors = mine = parts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_ROWS", together)
        loss = vocabulary_loss(
            hidden, before, successors, vocabulary=vocabulary, targets=targets, weights=weights
        )
    torch.autograd.backward(3.0 * loss)
    hidden, before, successors = theirs = parts()
    logits = torch.einsum("rgd,gvd->rgv", hidden, vocabulary)
    logits = logits + torch.einsum("rgd,gvd->rgv", before, successors)
    each = functional.cross_entropy(logits.flatten(1), targets, reduction="none")
    expected = (each * weights).sum()
    torch.autograd.backward(3.0 * expected)
    torch.testing.assert_close(loss, expected)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad)
