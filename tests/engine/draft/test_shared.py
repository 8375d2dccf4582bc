"""The shared draft cache: found, bounded, and never across tenants."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine.draft.shared import ORDER, PUBLIC, Scope, SharedDrafts

PROMPT = [90, 91, 92, 93]


def told(cache: SharedDrafts, tokens: list[int], tenant: str = "t", prompt: list[int] = PROMPT):
    document = cache.open(Scope(tenant), prompt)
    cache.append(document, tokens)
    return document


def test_what_another_request_said_is_proposed_from_its_first_token_on() -> None:
    cache = SharedDrafts(1000)
    told(cache, [1, 2, 3, 4, 5])
    asking = cache.open(Scope("t"), PROMPT)
    (first,) = cache.continuations(asking, PROMPT, 2, 3)
    assert (first.tokens, first.match_length) == ((1, 2, 3), 4)
    cache.append(asking, [1, 2])
    (later,) = cache.continuations(asking, [*PROMPT, 1, 2], 2, 8)
    assert (later.tokens, later.match_length) == ((3, 4, 5), 6)
    assert (cache.lookups, cache.hits) == (2, 2)


def test_a_request_that_is_still_running_shares_what_it_has_said() -> None:
    cache = SharedDrafts(1000)
    speaking = told(cache, [1, 2, 3])
    cache.append(speaking, [4, 5])
    assert cache.continuations(cache.open(Scope("t"), PROMPT), [1, 2, 3], 1, 9)[0].tokens == (4, 5)


def test_the_longest_agreement_comes_first_and_siblings_differ() -> None:
    cache = SharedDrafts(1000)
    told(cache, [1, 2, 3, 4, 10])
    told(cache, [9, 2, 3, 4, 11])
    told(cache, [9, 2, 3, 4, 11, 12])
    found = cache.continuations(cache.open(Scope("t"), PROMPT), [1, 2, 3, 4], 3, 2)
    assert [continuation.tokens for continuation in found] == [(10,), (11, 12)]
    assert [continuation.match_length for continuation in found] == [4, 3]


def test_a_request_is_never_told_what_it_said_itself() -> None:
    cache = SharedDrafts(1000)
    document = told(cache, [1, 2, 3, 4, 1, 2, 3])
    assert cache.continuations(document, [1, 2, 3], 2, 2) == []
    assert (cache.lookups, cache.hits) == (1, 0)


def test_a_prompt_is_matched_but_never_proposed() -> None:
    cache = SharedDrafts(1000)
    told(cache, [1], prompt=[5, 6, 7, 8, 9])
    asking = cache.open(Scope("t"), [5, 6, 7])
    assert cache.continuations(asking, [5, 6, 7], 2, 2) == []
    assert cache.continuations(asking, [7, 8, 9], 2, 2)[0].tokens == (1,)


def test_another_tenants_text_is_never_proposed() -> None:
    cache = SharedDrafts(1000)
    told(cache, [1, 2, 3, 4], tenant="a")
    assert cache.continuations(cache.open(Scope("b"), PROMPT), [1, 2, 3], 2, 2) == []


def test_what_is_public_is_nobodys_and_what_is_a_tenants_is_not_public() -> None:
    cache = SharedDrafts(1000)
    said = cache.open(PUBLIC, PROMPT)
    cache.append(said, [1, 2, 3, 4])
    told(cache, [1, 2, 3, 5], tenant="")
    assert cache.continuations(cache.open(PUBLIC, PROMPT), [1, 2, 3], 2, 2)[0].tokens == (4,)
    for tenant in ("", "public", "a"):
        found = cache.continuations(cache.open(Scope(tenant), PROMPT), [1, 2, 3], 2, 2)
        assert [continuation.tokens for continuation in found] == ([(5,)] if not tenant else [])


def test_the_least_recently_used_document_goes_first() -> None:
    cache = SharedDrafts(24)
    told(cache, [1, 2, 3, 4])
    told(cache, [5, 6, 7, 8])
    asking = cache.open(Scope("t"), [0])
    assert cache.continuations(asking, [1, 2, 3], 1, 1)  # used: now younger than the second
    told(cache, [20, 21, 22, 23])
    assert cache.continuations(asking, [1, 2, 3], 1, 1)
    assert cache.continuations(asking, [5, 6, 7], 1, 1) == []


def test_an_evicted_request_goes_on_without_being_remembered() -> None:
    cache = SharedDrafts(10)
    document = told(cache, [1, 2, 3, 4])
    told(cache, [5, 6, 7, 8])
    cache.append(document, [5, 5, 5])
    assert not document.kept
    assert cache.tokens == 8


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"), st.integers(0, 3), st.lists(st.integers(0, 2), max_size=9)
        ),
        max_size=40,
    )
)
@settings(max_examples=150)
def test_memory_is_bounded_and_every_answer_is_true(
    talk: list[tuple[str, int, list[int]]],
) -> None:
    cache = SharedDrafts(40)
    documents = {}
    said: dict[str, list[list[int]]] = {"a": [], "b": [], "c": []}
    for tenant, speaker, tokens in talk:
        if (tenant, speaker) not in documents:
            documents[tenant, speaker] = cache.open(Scope(tenant), [0, 1]), [0, 1]
            said[tenant].append(documents[tenant, speaker][1])
        document, text = documents[tenant, speaker]
        cache.append(document, tokens)
        text += tokens
        for length, following in cache.continuations(document, text, 2, 3):
            assert length >= ORDER
            known = text[-length:] + list(following)
            assert any(
                known == other[at : at + len(known)]
                for other in said[tenant]
                for at in range(len(other))
            )
        kept = [document for document, _ in documents.values() if document.kept]
        assert cache.tokens == sum(len(document.tokens) for document in kept) <= 40
        assert sum(map(len, cache._latest.values())) <= cache.tokens


def test_a_text_is_recalled_by_its_own_scope_and_by_so_many_tokens() -> None:
    cache = SharedDrafts(1000)
    told(cache, [1, 2, 3, 4, 5])
    told(cache, [9, 3, 4, 8])  # a newer text with the same end, which agrees on less
    told(cache, [6, 7, 3, 4])
    ours, theirs = Scope("t"), Scope("other")
    assert cache.recalls(ours, [*PROMPT, 1, 2, 3, 4], 8)
    assert not cache.recalls(ours, [*PROMPT, 1, 2, 3, 4], 9)
    assert not cache.recalls(ours, [*PROMPT, 1, 2, 3, 4, 5], 3), "nothing is known to follow"
    assert not cache.recalls(ours, [4, 4], 1)
    assert not cache.recalls(theirs, [*PROMPT, 1, 2, 3, 4], 3)
    assert cache.lookups == 0
