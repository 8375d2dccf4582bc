"""The log-probabilities that `/v1` shows, of tokens that may end within a character."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.inference.openai_replies import CHAT, TEXT, Scores, Shape
from metering.bodies import Likely
from metering.protocols import CommittedBlock

Token = tuple[bytes, int | None, tuple[Likely, ...]]


def block(*tokens: Token) -> CommittedBlock:
    pieces, unats, beside = zip(*tokens, strict=True)
    return CommittedBlock(
        request_id="req_1",
        block_index=0,
        token_ids=tuple(range(len(tokens))),
        text="",
        pieces=pieces,
        logprobs_unats=unats,
        forced=(),
        alternatives=beside if any(beside) else (),
        units_closed=0,
        geo_mean=None,
        joint_prob=None,
        accepted_tokens=0,
        drafted_depth=0,
    )


def likely(token_id: int, piece: bytes, unats: int | None) -> Likely:
    return Likely(token_id, piece, unats)


def test_bytes_that_are_no_text_keep_their_own_figures() -> None:
    others = (likely(1, b"\xf0\x9f", -100_000), likely(2, b"\xc3", -200_000))
    found = Scores(TEXT).of([block((b"\xe2", -3_000_000, others), (b"\x82\xac", -5, others))])
    assert found["tokens"] == [r"bytes:\xe2", r"bytes:\x82\xac"]
    assert found["token_logprobs"] == [-3.0, -5e-6]
    assert found["top_logprobs"] == [
        {r"bytes:\xe2": -3.0, r"bytes:\xf0\x9f": -0.1, r"bytes:\xc3": -0.2},
        {r"bytes:\x82\xac": -5e-6, r"bytes:\xf0\x9f": -0.1, r"bytes:\xc3": -0.2},
    ]
    assert found["text_offset"] == [0, 0]


def test_the_drawn_token_has_its_own_figure_and_one_text_the_likeliest_ones() -> None:
    others = (likely(7, b"a", -1), likely(8, b"", -2), likely(9, b"", -900))
    found = Scores(TEXT).of([block((b"a", -700_000, others))])
    assert found["top_logprobs"] == [{"a": -0.7, "": -2e-6}]


def test_the_lists_are_parallel_where_a_token_has_nothing_beside_it() -> None:
    tokens = ((b"a", -1, ()), (b"b", None, ()), (b"c", -3, (likely(1, b"d", -4),)))
    found = Scores(TEXT).of([block(*tokens)])
    assert found["tokens"] == ["a", "c"]
    assert found["top_logprobs"] == [{"a": -1e-6}, {"c": -3e-6, "d": -4e-6}]
    assert found["text_offset"] == [0, 2], "text without a score counts too"
    assert Scores(TEXT).of([block((b"a", -1, ()))])["top_logprobs"] is None


def test_a_conversations_tokens_are_told_apart_by_name_as_well() -> None:
    others = (likely(1, b"\xf0\x9f", -1), likely(2, b"\xe2", -2))
    (entry,) = Scores(CHAT).of([block((b"\xe2", -2, others))])["content"]
    assert (entry["token"], entry["bytes"]) == (r"bytes:\xe2", [0xE2])
    assert [other["token"] for other in entry["top_logprobs"]] == [r"bytes:\xf0\x9f", r"bytes:\xe2"]


cuts = st.lists(st.integers(0, 40), max_size=12)


@pytest.mark.parametrize("shape", [TEXT, CHAT])
@given(text=st.text("aé€\U0001f600", min_size=1, max_size=10), cuts=cuts, ends=cuts)
def test_streamed_or_whole_the_tokens_say_the_same(
    shape: Shape, text: str, cuts: list[int], ends: list[int]
) -> None:
    data = text.encode()
    places = sorted({0, len(data)} | {cut for cut in cuts if cut < len(data)})
    pieces = [data[start:end] for start, end in pairwise(places)]
    tokens: list[Token] = [
        (piece, -index, (likely(index, piece[::-1], -index),)) for index, piece in enumerate(pieces)
    ]
    bounds = sorted({0, len(tokens)} | {end for end in ends if end < len(tokens)})
    blocks = [block(*tokens[start:end]) for start, end in pairwise(bounds)]

    whole, scores = Scores(shape).of(blocks), Scores(shape)
    streamed: dict[str, Any] = {}
    for part in (scores.of([each]) for each in blocks):
        for name, values in part.items():
            streamed[name] = values if values is None else [*streamed.get(name, []), *values]
    assert streamed == whole
    if shape is TEXT:
        before = [data[:start].decode(errors="ignore") for start in places[:-1]]
        assert whole["text_offset"] == [len(each) for each in before]
