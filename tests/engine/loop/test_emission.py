"""Stop strings, ends and blocks, token by token."""

from engine_sequences import request
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.graph.acceptance import Clipped
from engine.loop.emission import Drawn, Emission
from engine.records import BlockRecord, FinishReason

EOS = 0


def said(
    pieces: list[bytes], stop: tuple[str, ...] = (), max_tokens: int = 100, **options: bool
) -> tuple[Emission, list[BlockRecord]]:
    """Emit tokens 1, 2, 3, ... with these pieces, one a step, until the text ends."""
    emission = Emission(
        request(stop=stop, max_tokens=max_tokens, **options),
        lambda token: pieces[token - 1] if token else b"",
        frozenset({EOS}),
    )
    blocks = []
    for token in range(1, len(pieces) + 1):
        ended = emission.take(Drawn(token, -0.5, 1.0, False, False))
        emission.count(Clipped(0, 0), 1)
        if block := emission.block():
            blocks.append(block)
        if ended:
            break
    return emission, blocks


def text(blocks: list[BlockRecord]) -> bytes:
    return b"".join(piece for block in blocks for piece in block.pieces)


def test_without_stop_strings_every_token_is_said_at_once() -> None:
    emission, blocks = said([b"a", b"b"])
    assert [block.pieces for block in blocks] == [(b"a",), (b"b",)]
    assert [block.block_index for block in blocks] == [0, 1]
    assert emission.reason is None


def test_a_token_that_may_begin_a_stop_string_waits_until_that_is_decided() -> None:
    _, blocks = said([b"x", b"<", b"/", b"a", b"b"], stop=("</s>",))
    assert [block.token_ids for block in blocks] == [(1,), (2, 3, 4), (5,)]
    assert text(blocks) == b"x</ab"


def test_a_stop_string_cuts_pieces_where_it_begins_and_ends_the_text() -> None:
    emission, blocks = said([b"x", b"y<", b"/", b"s>z", b"never"], stop=("</s>",))
    assert text(blocks) == b"xy"
    assert blocks[-1].token_ids == (2, 3, 4)
    assert blocks[-1].pieces == (b"y", b"", b"")
    assert emission.reason is FinishReason.STOP
    assert emission.finish(emission.reason).token_count == 4


def test_the_stop_string_that_begins_first_wins() -> None:
    _, blocks = said([b"a", b"bcd"], stop=("cd", "abc"))
    assert text(blocks) == b""


def test_a_step_that_says_nothing_makes_no_block_and_its_work_is_not_lost() -> None:
    _, blocks = said([b"<", b"/", b"x"], stop=("</s>",))
    (block,) = blocks
    assert block.verified_nodes == 3


def test_a_blocks_counts_fit_its_tokens_even_where_some_were_held_back() -> None:
    """Given five nodes three deep: one token accepted, and the emitted one held back."""
    emission = Emission(request(stop=("</s>",)), {1: b"x", 2: b"<", 3: b"y"}.get, frozenset())
    emission.take(Drawn(1, -0.1, 0.2, True, False))
    emission.take(Drawn(2, -0.1, 0.2, False, False))
    emission.count(Clipped(nodes=5, depth=3), 6)
    first = emission.block()
    emission.take(Drawn(3, -0.1, 0.2, False, False))
    emission.count(Clipped(nodes=0, depth=0), 1)
    second = emission.block()
    counts = [
        (block.token_ids, block.accepted_tokens, block.drafted_depth, block.drafted_nodes)
        for block in (first, second)
    ]
    assert counts == [((1,), 1, 1, 1), ((2, 3), 0, 2, 4)]
    assert first.verified_nodes + second.verified_nodes == 7


def test_an_end_of_text_says_what_was_held_back() -> None:
    emission = Emission(request(stop=("abc",)), lambda token: b"ab", frozenset({EOS}))
    assert not emission.take(Drawn(5, -0.1, 0.2, False, False))
    assert emission.block() is None
    assert emission.take(Drawn(EOS, -0.1, 0.2, True, False))
    block = emission.block()
    assert block is not None
    assert (block.token_ids, block.pieces) == ((5, EOS), (b"ab", b""))
    assert (block.accepted_tokens, block.anchor) == (1, 1)
    assert emission.reason is FinishReason.STOP


def test_the_length_says_what_was_held_back() -> None:
    emission, blocks = said([b"<", b"/"], stop=("</s>",), max_tokens=2)
    assert text(blocks) == b"</"
    assert emission.reason is FinishReason.LENGTH


def test_a_stop_string_in_the_last_token_is_a_stop() -> None:
    emission, _ = said([b"a", b"b"], stop=("ab",), max_tokens=2)
    assert emission.reason is FinishReason.STOP


def test_an_ignored_end_of_text_is_a_token_like_any_other() -> None:
    emission = Emission(request(ignore_eos=True), lambda _: b"", frozenset({EOS}))
    assert not emission.take(Drawn(EOS, -0.1, 0.2, False, False))


def test_what_is_held_back_at_a_cancellation_was_never_emitted() -> None:
    emission, _ = said([b"x", b"<"], stop=("</s>",))
    assert emission.finish(FinishReason.CANCELLED).token_count == 1


@given(
    pieces=st.lists(st.text("ab", max_size=3).map(str.encode), max_size=12),
    stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
)
@settings(max_examples=300)
def test_the_text_is_everything_before_the_first_stop_string(
    pieces: list[bytes], stops: list[str]
) -> None:
    """However the bytes fall into tokens; what is said is never taken back."""
    emission, blocks = said(pieces, stop=tuple(stops), max_tokens=100)
    spoken = b""
    for at in range(len(pieces)):
        spoken = b"".join(pieces[: at + 1])
        begins = [spoken.find(stop.encode()) for stop in stops if stop.encode() in spoken]
        if begins:
            assert emission.reason is FinishReason.STOP
            assert text(blocks) == spoken[: min(begins)]
            assert emission.tokens == at + 1
            return
    assert emission.reason is None
    assert spoken.startswith(text(blocks))
    held = spoken[len(text(blocks)) :]
    assert not held or any(
        stop.encode().startswith(held[at:])
        for stop in stops
        for at in range(len(held))
        if at < 3  # a token is held whole, its first bytes may be harmless
    )
