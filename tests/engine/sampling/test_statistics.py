"""Raw log-probabilities and entropies against float64 arithmetic."""

import numpy as np
import pytest

from engine.sampling.statistics import NonFiniteLogits, raw_statistics, top_logprobs


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


def test_the_likeliest_tokens_come_in_order_with_ties_for_the_lowest_id() -> None:
    row = np.array([0.0, 2.0, -1.0, 2.0, 1.0, 2.0], np.float32)
    logprob = raw_statistics(row, 4).logprob
    top = top_logprobs(row, 3, 4, logprob)
    assert [token for token, _ in top] == [1, 3, 5]
    for token, value in top_logprobs(row, 6, 4, logprob):
        assert value == pytest.approx(raw_statistics(row, token).logprob, abs=1e-6)
    assert top_logprobs(row, 0, 4, logprob) == ()
