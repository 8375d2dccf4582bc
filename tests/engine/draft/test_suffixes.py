"""A text searched for its own end, against a plain search of all of it."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft.proposals import LONGEST_MATCH
from engine.draft.suffixes import Suffixes

texts = st.lists(st.integers(0, 3), max_size=60)


def occurrences(text: list[int]) -> list[tuple[int, int]]:
    """(match length, end) of every earlier place that agrees with the end, best first."""
    found = []
    for end in range(len(text) - 1):
        length = 0
        while length <= end and length < LONGEST_MATCH and text[end - length] == text[-1 - length]:
            length += 1
        if length >= 2:
            found.append((length, end))
    return sorted(found, reverse=True)


def follow(text: list[int], end: int, depth: int) -> tuple[int, ...]:
    longer = list(text)
    for _ in range(depth):
        longer.append(longer[len(longer) - (len(text) - 1 - end)])
    return tuple(longer[len(text) :])


@given(texts, st.integers(1, 4), st.integers(1, 9), st.lists(st.integers(1, 7), max_size=20))
@settings(max_examples=300)
def test_it_finds_what_a_search_of_the_whole_text_finds(
    text: list[int], count: int, depth: int, cuts: list[int]
) -> None:
    """Given a text that came in pieces."""
    suffixes, fed = Suffixes([]), 0
    for cut in cuts:
        suffixes.extend(text[fed : fed + cut])
        fed = min(len(text), fed + cut)
    suffixes.extend(text[fed:])
    expected: dict[int, tuple[int, tuple[int, ...]]] = {}
    places = occurrences(text)
    for length, end in places:
        expected.setdefault(text[end + 1], (length, follow(text, end, depth)))
    found = suffixes.continuations(count, depth)
    assert len(suffixes) == len(text)
    assert [tuple(continuation) for continuation in found] == list(expected.values())[:count]


def test_a_period_goes_on_beyond_the_end_of_the_text() -> None:
    (continuation,) = Suffixes([1, 2, 3, 1, 2, 3, 1, 2]).continuations(1, 7)
    assert continuation.tokens == (3, 1, 2, 3, 1, 2, 3)
    assert continuation.match_length == 5


def test_a_single_common_token_is_no_evidence() -> None:
    assert Suffixes([5, 1, 2, 3, 4, 1]).continuations(3, 4) == []


def test_an_empty_text_continues_nowhere() -> None:
    assert Suffixes([]).continuations(3, 4) == []
