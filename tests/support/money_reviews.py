"""Reviews as reviewers drive them, with every claim that lapsed or was taken over."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from money_world import World, sometimes

from billing import review
from billing.errors import ReviewConflict
from billing.review import ReviewState
from billing.review_items import items
from metering.database import transaction

REVIEWERS = ("key_anna", "key_ben")

verdicts = st.sampled_from(["approve", "edit", "reject"])


class Reviews(World):
    """From the claim to the verdict."""

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), reviewer=st.sampled_from(REVIEWERS))
    def claim(self, data: st.DataObject, reviewer: str) -> None:
        self.take(data, reviewer)

    def take(self, data: st.DataObject, reviewer: str) -> str | None:
        with transaction(self.database) as connection:
            waiting = items(connection, ReviewState.QUEUED, 5)
            waiting += items(connection, ReviewState.CLAIMED, 5)
            if not waiting:
                return None
            item = data.draw(st.sampled_from(waiting))
            try:
                token = review.claim(connection, item.id, reviewer)
            except ReviewConflict:
                assert item.claimed_by != reviewer or item.due_at_us <= self.now_us
                return None
            assert token == item.claim_token + 1
        self.claims[item.id] = (reviewer, token)
        return item.id

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), verdict=verdicts, wrong=st.sampled_from([0, -1, 1]), crashes=sometimes)
    def resolve(self, data: st.DataObject, verdict: str, wrong: int, crashes: bool) -> None:
        self.judge(data.draw(st.sampled_from(sorted(self.claims))), verdict, wrong, crashes)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), reviewer=st.sampled_from(REVIEWERS), verdict=verdicts)
    def review_one(self, data: st.DataObject, reviewer: str, verdict: str) -> None:
        """A review from claim to verdict, as most go."""
        item_id = self.take(data, reviewer)
        if item_id is not None:
            self.judge(item_id, verdict)

    def judge(self, item_id: str, verdict: str, wrong: int = 0, crashes: bool = False) -> None:
        reviewer, token = self.claims[item_id]
        with suppress(ReviewConflict), self.committing(crashes) as connection:
            for _ in range(2):
                review.resolve(
                    connection,
                    item_id,
                    reviewer,
                    token + wrong,
                    verdict=verdict,
                    reasons=[] if verdict == "approve" else ["incorrect"],
                    signer=self.signer,
                    edited_output="better" if verdict == "edit" else None,
                )
            assert not wrong
