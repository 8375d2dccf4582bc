"""Tables of phrases: counted once, looked up by the longest known context."""

import numpy as np
import pytest

from engine.draft.phrases import Phrases, context_hash
from engine.draft.proposals import Foreseen
from engine.training.corpus import Sequence
from engine.training.counting import count_phrases


def counted(*texts: list[int], prompt_length: int = 1) -> Phrases:
    return count_phrases(
        [Sequence(np.array(text, np.int32), prompt_length) for text in texts], vocab_size=50
    )


def test_the_longest_context_decides_and_shorter_ones_step_in() -> None:
    phrases = counted(*[[1, 2, 3, 4]] * 6, *[[9, 2, 3, 5]] * 9)
    assert phrases.successors([1, 2, 3])[0][0] == 4
    assert phrases.successors([9, 2, 3])[0][0] == 5
    assert [token for token, _ in phrases.successors([7, 2, 3])] == [5, 4]  # by two tokens
    assert [token for token, _ in phrases.successors([8, 8, 3])] == [5, 4]  # by one
    assert phrases.successors([8, 8, 8]) == ()


def test_probabilities_lean_on_the_shorter_context() -> None:
    phrases = counted(*[[1, 2, 3, 4]] * 8, *[[9, 2, 3, 5]] * 8)
    (seen, likely), (unseen, inherited) = phrases.successors([1, 2, 3])
    # 8 of 8 less a half, and four imaginary ones that go as two tokens of context went, and those
    # as one did
    by_one = (7.5 + 4 / 50) / 20
    by_two = (7.5 + 4 * by_one) / 20
    assert (seen, unseen) == (4, 5)
    assert likely == pytest.approx((7.5 + 4 * by_two) / 12, abs=0.005)
    assert inherited == pytest.approx(4 * by_two / 12, abs=0.005)


def test_what_the_prompt_says_is_context_but_is_not_counted() -> None:
    phrases = counted(*[[1, 2, 3, 4]] * 3, prompt_length=3)
    assert phrases.successors([1]) == ()
    assert phrases.successors([2, 3])[0][0] == 4


def test_edges_come_parents_first_and_stay_within_the_depth() -> None:
    phrases = counted(*[[1, 2, 3, 4, 5, 6, 7, 8]] * 5, *[[1, 2, 9, 4, 5, 6, 7, 8]] * 4)
    edges = phrases.foresee([1, 2], depth_limit=3)
    assert {(edge.depth, edge.token) for edge in edges} >= {(1, 3), (1, 9), (2, 4), (3, 5)}
    assert max(edge.depth for edge in edges) == 3
    reached = {(0, -1)}
    for edge in edges:
        assert (edge.depth - 1, edge.previous) in reached
        reached.add((edge.depth, edge.token))
    assert len({edge[:3] for edge in edges}) == len(edges)
    assert phrases.foresee([40, 41], depth_limit=3) == []


def test_another_sources_first_tokens_are_gone_on_from() -> None:
    phrases = counted(*[[1, 2, 3, 4]] * 5, *[[6, 7, 8, 9]] * 5)
    others = [Foreseen(1, 2, 7, 0.5), Foreseen(1, 2, 3, 0.5), Foreseen(2, 7, 9, 0.9)]
    edges = phrases.foresee([1, 2], 3, others)
    behind_other = {edge[:3] for edge in edges if edge.previous == 7}
    assert behind_other == {(2, 7, 8)}
    assert (3, 8, 9) in {edge[:3] for edge in edges}
    assert 7 not in {edge.token for edge in edges if edge.depth == 1}  # that edge is the other's


def test_contexts_are_hashed_alike_when_counted_and_when_looked_up() -> None:
    random = np.random.default_rng(1)
    texts = [random.integers(0, 50, 12).tolist() for _ in range(40)] * 2
    phrases = counted(*texts)
    keys = set(phrases.tables[3].keys.tolist())
    for text in texts:
        for end in range(3, len(text)):
            assert context_hash(text[end - 3 : end]) in keys
