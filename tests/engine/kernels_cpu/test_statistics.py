"""What is known of a row of logits, on every path."""

from __future__ import annotations

import pytest
import torch
from block_runtimes import RUNTIMES

from engine.kernels.cpu.ops import handle


def statistics(name: str, logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return top, largest, log-sum-exp and entropy of each row, through the operator."""
    result: tuple[torch.Tensor, ...] = torch.ops.dflash.row_statistics(
        handle(RUNTIMES[name]), logits
    )
    return result


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("vocabulary", [1, 269, 4096, 49152, 5001])
def test_statistics_are_those_of_the_softmax(name, vocabulary):
    logits = 6 * torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    exact = logits.double().log_softmax(1)
    top, largest, log_sum_exp, found = statistics(name, logits)
    assert torch.equal(top, logits.argmax(1))
    assert torch.equal(largest, logits.amax(1))
    torch.testing.assert_close(log_sum_exp, logits.double().logsumexp(1), rtol=1e-6, atol=1e-6)
    entropy = -(exact.exp() * exact).sum(1)
    torch.testing.assert_close(found, entropy, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("vocabulary", [10_007, 16])
def test_neither_path_nor_threads_nor_neighbours_change_a_bit(vocabulary):
    logits = 6 * torch.randn(7, vocabulary, generator=torch.Generator().manual_seed(0))
    twin, *native = [statistics(name, logits) for name in reversed(RUNTIMES)]
    for other in native:
        assert all(map(torch.equal, other, twin))
    alone = statistics("twin", logits[3:4])
    assert all(torch.equal(own, rows[3:4]) for own, rows in zip(alone, twin, strict=True))


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_an_entropy_is_finite_only_where_every_logit_is(name, bad):
    logits = torch.zeros(2, 9000)
    logits[1, 5000] = bad
    assert statistics(name, logits)[3].isfinite().tolist() == [True, False]


@pytest.mark.parametrize("name", RUNTIMES)
def test_of_equals_the_first_is_the_top(name):
    logits = torch.zeros(1, 9000)
    logits[0, [4090, 4100, 8999]] = 2.0
    assert statistics(name, logits)[0].item() == 4090
