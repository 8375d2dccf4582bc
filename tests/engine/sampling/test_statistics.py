"""Raw log-probabilities and entropies against float64 arithmetic."""

import numpy as np
import pytest

from engine.sampling.statistics import NonFiniteLogits, raw_statistics


@pytest.mark.parametrize("scale", [0.0, 1.0, 20.0])
def test_statistics_agree_with_float64_to_float32_accuracy(scale: float) -> None:
    logits = (np.random.default_rng(3).normal(size=5000) * scale).astype(np.float32)
    exact = logits.astype(np.float64) - logits.max()
    log_probs = exact - np.log(np.exp(exact).sum())
    entropy = -(np.exp(log_probs) * log_probs).sum()
    for token in (0, 17, int(logits.argmax())):
        found = raw_statistics(logits, token)
        assert found.logprob == pytest.approx(log_probs[token], rel=1e-5, abs=1e-6)
        assert found.entropy == pytest.approx(entropy, rel=1e-5, abs=1e-6)


def test_a_certain_token_has_probability_one_and_no_entropy() -> None:
    logits = np.full(100, -1e4, np.float32)
    logits[42] = 1e4
    assert raw_statistics(logits, 42) == (0.0, 0.0)


def test_a_flat_row_has_the_entropy_of_its_vocabulary() -> None:
    assert raw_statistics(np.zeros(512, np.float32), 9).entropy == pytest.approx(np.log(512))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_non_finite_logits_are_an_error(bad: float) -> None:
    with pytest.raises(NonFiniteLogits):
        raw_statistics(np.array([0.0, bad], np.float32), 0)
