"""Sessions: sources merged into one lattice, bounds kept, blocks recycled."""

import msgspec

from engine.config import EngineConfig
from engine.draft.drafter import Drafter, DraftSession
from engine.draft.proposals import Source
from engine.graph.acceptance import walk


def drafter(**changes: object) -> Drafter:
    return Drafter(msgspec.structs.replace(EngineConfig(), **changes))


def session(text: list[int], of: Drafter | None = None, tenant: str = "t") -> DraftSession:
    return (of or drafter()).open(tenant, text)


def test_a_repeated_text_is_drafted_from_its_own_past() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    draft = session(text).propose(text, depth_limit=7, node_budget=8, least_probability=0.0)
    assert draft is not None
    assert draft.tree.tokens == (3, 4, 5, 6, 7, 8, 1)  # twice the three tokens that agree
    assert set(draft.tree.origins[1:]) == {Source.SUFFIX}


def test_depth_and_nodes_are_bounded() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 4
    small = session(text).propose(text, depth_limit=2, node_budget=8, least_probability=0.0)
    assert small is not None
    assert small.tree.depth == 2
    few = session(text).propose(text, depth_limit=7, node_budget=4, least_probability=0.0)
    assert few is not None
    assert len(few.tree) == 4
    block = session(text, drafter(draft_block_size=3)).propose(
        text, depth_limit=7, node_budget=8, least_probability=0.0
    )
    assert block is not None
    assert block.tree.depth == 3


def test_nothing_likely_is_no_draft_at_all() -> None:
    assert (
        session([1, 2, 3, 4]).propose(
            [1, 2, 3, 4], depth_limit=7, node_budget=8, least_probability=0.0
        )
        is None
    )
    text = [1, 2, 9, 1, 2]
    assert session(text).propose(text, depth_limit=7, node_budget=8, least_probability=0.99) is None


def test_another_request_of_the_tenant_is_a_source_too() -> None:
    common = drafter()
    first = session([1, 2, 3], common)
    first.extend([10, 11, 12, 13], drafted=False)
    draft = session([1, 2, 3], common).propose(
        [1, 2, 3], depth_limit=7, node_budget=8, least_probability=0.0
    )
    assert draft is not None
    assert draft.tree.tokens == (3, 10, 11, 12, 13)
    assert set(draft.tree.origins[1:]) == {Source.SHARED}
    assert (
        session([1, 2, 3], common, "other").propose(
            [1, 2, 3], depth_limit=7, node_budget=8, least_probability=0.0
        )
        is None
    )


def rejected_once(entropy: float, **changes: object) -> tuple[DraftSession, list[int]]:
    """A session whose draft 4, 5, 6, ... was rejected at 5, where 99 was emitted."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    drafting = session(text, drafter(**changes))
    draft = drafting.propose(text, depth_limit=7, node_budget=8, least_probability=0.0)
    assert draft is not None
    walked = walk(draft.tree, [4, 99, 0].__getitem__, lambda _: False)
    drafting.observe(draft, walked, [0.1, entropy])
    drafting.extend(walked.tokens, drafted=True)
    return drafting, [*text, 4, 99]


def test_a_sure_rejection_recycles_what_lay_beyond_it() -> None:
    drafting, text = rejected_once(0.2)
    draft = drafting.propose(text, depth_limit=7, node_budget=8, least_probability=0.0)
    assert draft is not None
    assert draft.tree.tokens == (99, 6, 7, 8)
    assert set(draft.tree.origins[1:]) == {Source.RECYCLED}


def test_under_restart_nothing_is_recycled() -> None:
    drafting, text = rejected_once(0.2, rollback="restart")
    assert drafting.propose(text, depth_limit=7, node_budget=8, least_probability=0.0) is None


def test_a_plain_step_in_between_forgets_what_was_left_over() -> None:
    drafting, text = rejected_once(0.2)
    drafting.extend([50], drafted=False)
    assert (
        drafting.propose([*text, 50], depth_limit=7, node_budget=8, least_probability=0.0) is None
    )


def test_an_unsure_rejection_drafts_wider_and_shallower() -> None:
    drafting, text = rejected_once(2.0)
    branches = [1, 2, 3, 21, 1, 2, 3, 22, 1, 2, 3, 23, 1, 2, 3, 24, 1, 2, 3]
    drafting._suffixes.extend(branches)
    draft = drafting.propose(
        [*text, *branches], depth_limit=7, node_budget=20, least_probability=0.0
    )
    assert draft is not None
    assert len(draft.tree.children[0]) == 4
    assert draft.tree.depth == 3
