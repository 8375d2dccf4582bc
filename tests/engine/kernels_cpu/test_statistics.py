"""What is known of a row of logits, on every path."""

from __future__ import annotations

import pytest
import torch
from block_runtimes import RUNTIMES

from engine.kernels.cpu.ops import handle


@pytest.mark.parametrize("name", RUNTIMES)
@pytest.mark.parametrize("vocabulary", [1, 269, 4096, 49152, 5001])
def test_statistics_are_those_of_the_softmax(name, vocabulary):
    logits = 6 * torch.randn(5, vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    exact = logits.double().log_softmax(1)
    statistics = RUNTIMES[name].statistics(logits)
    assert torch.equal(statistics.top, logits.argmax(1))
    assert torch.equal(statistics.largest, logits.amax(1))
    torch.testing.assert_close(
        statistics.log_sum_exp, logits.double().logsumexp(1).float(), rtol=1e-6, atol=1e-6
    )
    entropy = -(exact.exp() * exact).sum(1).float()
    torch.testing.assert_close(statistics.entropy, entropy, rtol=1e-5, atol=1e-5)


def test_instruction_set_and_threads_change_no_bit():
    logits = 6 * torch.randn(7, 10_007, generator=torch.Generator().manual_seed(0))
    native = [
        torch.ops.dflash.row_statistics(handle(runtime), logits)
        for name, runtime in RUNTIMES.items()
        if name != "twin"
    ]
    for other in native[1:]:
        assert all(map(torch.equal, other, native[0]))


@pytest.mark.parametrize("name", RUNTIMES)
def test_of_equals_the_first_is_the_top(name):
    logits = torch.zeros(1, 9000)
    logits[0, [4090, 4100, 8999]] = 2.0
    assert RUNTIMES[name].statistics(logits).top.item() == 4090
