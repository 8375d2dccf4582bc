"""Raw log-probabilities and entropies against float64 arithmetic."""

import numpy as np
import pytest

from engine.model.statistics import NonFiniteLogits, raw_statistics


@pytest.mark.parametrize("scale", [0.0, 1.0, 20.0])
def test_statistics_agree_with_float64_to_float32_accuracy(scale: float) -> None:
    logits = (np.random.default_rng(3).normal(size=(2, 5000)) * scale).astype(np.float32)
    for row, found in zip(logits, raw_statistics(logits), strict=True):
        exact = row.astype(np.float64) - row.max()
        log_probs = exact - np.log(np.exp(exact).sum())
        entropy = -(np.exp(log_probs) * log_probs).sum()
        assert found.top == row.argmax()
        assert found.entropy == pytest.approx(entropy, rel=1e-5, abs=1e-6)
        for token in (0, 17, found.top):
            logprob = found.logprob(float(row[token]))
            assert logprob == pytest.approx(log_probs[token], rel=1e-5, abs=1e-6)


def test_a_certain_token_has_probability_one_and_no_entropy() -> None:
    logits = np.full((1, 100), -1e4, np.float32)
    logits[0, 42] = 1e4
    (found,) = raw_statistics(logits)
    assert (found.top, found.logprob(1e4), found.entropy) == (42, 0.0, 0.0)


def test_a_flat_row_has_the_entropy_of_its_vocabulary() -> None:
    (found,) = raw_statistics(np.zeros((1, 512), np.float32))
    assert found.entropy == pytest.approx(np.log(512))
    assert found.top == 0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_logits_are_an_error_of_their_own_row(bad: float) -> None:
    fine, broken = raw_statistics(np.array([[0.0, 1.0], [0.0, bad]], np.float32))
    fine.logprob(0.0)
    with pytest.raises(NonFiniteLogits):
        broken.logprob(0.0)
