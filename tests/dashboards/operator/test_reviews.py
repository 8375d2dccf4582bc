"""Review forms: what they refuse, what they leave in the audit log, and how time is told."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from billing_cases import unit
from browser_pages import World
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api import audit
from api.roles import Role
from billing import review
from billing.review_items import ReviewItem, ReviewState, Verdict
from dashboards.operator.reviews import ItemView
from metering.database import snapshot

MINUTE_US = 60_000_000


class Reviewer:
    """Somebody at the review forms."""

    def __init__(self, world: World, client: TestClient[Litestar]) -> None:
        self.world = world
        self._client = client
        self.item_id = f"rev_{world.settle(unit(8, tier='review'), geo_mean='0.4100')}"
        self._send("/sign-in", page="/sign-in", key=world.house.reviewer)

    def page(self) -> str:
        return self._client.get(f"/dashboard/reviews/{self.item_id}").text

    def claim(self) -> None:
        self._send(f"/reviews/{self.item_id}/claim")

    def verdict(self, **fields: str) -> str:
        return self._send(f"/reviews/{self.item_id}/verdict", **fields)

    def item(self) -> ReviewItem:
        with snapshot(self.world.database) as connection:
            return review.item(connection, self.item_id)

    def _send(self, path: str, page: str | None = None, **fields: str) -> str:
        shown = self._client.get(f"/dashboard{page or f'/reviews/{self.item_id}'}").text
        token = re.search(r'name="csrf_token" value="([^"]+)"', shown)
        assert token is not None
        sent = self._client.post(f"/dashboard{path}", data={"csrf_token": token[1], **fields})
        notice = re.search(r'class="notice (?:done|failed)"[^>]*>([^<]*)<', sent.text)
        return notice[1] if notice else ""


@pytest.fixture
def reviewer(sqlite_database: Engine, tmp_path: Path) -> Iterator[Reviewer]:
    world = World(sqlite_database, tmp_path)
    with TestClient(world.app()) as client:
        yield Reviewer(world, client)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"verdict": "approve"}, "token is missing"),
        ({"verdict": "approve", "claim_token": "one"}, "token is missing"),
        ({"verdict": "approve", "claim_token": "9" * 30}, "token is missing"),
        ({"verdict": "approve", "claim_token": "٣"}, "token is missing"),
        ({"verdict": "approve", "claim_token": "7"}, "not claimed with this token"),
        ({"verdict": "burn", "claim_token": "1"}, "A verdict is approve, edit or reject"),
        ({"verdict": "approve", "claim_token": "1", "note": "x" * 4001}, "at most 4000"),
    ],
)
def test_a_verdict_that_cannot_stand_is_refused_and_moves_nothing(
    reviewer: Reviewer, fields: dict[str, str], said: str
) -> None:
    reviewer.claim()
    assert said in reviewer.verdict(**fields)
    assert reviewer.item().state is ReviewState.CLAIMED


def test_claims_and_verdicts_are_audited_with_whoever_made_them(reviewer: Reviewer) -> None:
    reviewer.claim()
    assert "approved" in reviewer.verdict(verdict="approve", claim_token="1", note=" fine \r\n")
    item = reviewer.item()
    assert (item.verdict, item.note, item.edited_output) == (Verdict.APPROVE, "fine", None)
    with snapshot(reviewer.world.database) as connection:
        entries = audit.entries(connection, limit=2)
    assert [entry.action for entry in entries] == ["review.resolved", "review.claimed"]
    assert {entry.actor for entry in entries} == {reviewer.world.house.key_ids[Role.REVIEWER]}
    assert {entry.tenant_id for entry in entries} == {reviewer.world.house.tenant_id}


def test_a_refused_claim_is_not_audited(reviewer: Reviewer) -> None:
    reviewer.claim()
    reviewer.verdict(verdict="approve", claim_token="1")
    with snapshot(reviewer.world.database) as connection:
        before = audit.entries(connection, limit=50)
    reviewer._send(f"/reviews/{reviewer.item_id}/claim")
    with snapshot(reviewer.world.database) as connection:
        assert audit.entries(connection, limit=50) == before


def test_a_correction_keeps_the_lines_it_was_written_with(reviewer: Reviewer) -> None:
    reviewer.claim()
    said = {"verdict": "edit", "claim_token": "1", "reason_format": "1"}
    reviewer.verdict(**said, edited_output="\r\na\r\n\r\nb")
    assert reviewer.item().edited_output == "\na\n\nb"


def view(now_us: int, **fields: Any) -> ItemView:
    values: dict[str, Any] = {
        "id": "rev_1",
        "request_id": "req_1",
        "tenant_id": "ten_1",
        "rule_version": "review/1",
        "reason": "audit",
        "geo_mean": None,
        "fee_nano": 0,
        "currency": "USD",
        "state": ReviewState.CLAIMED,
        "claimed_by": "key_1",
        "claim_token": 1,
        "claim_expires_at_us": 15 * MINUTE_US,
        "verdict": None,
        "note": None,
        "edited_output": None,
        "resolved_by": None,
        "queued_at_us": 0,
        "due_at_us": 60 * MINUTE_US,
        "resolved_at_us": None,
    }
    return ItemView(ReviewItem(**(values | fields)), now_us)


def test_a_claim_holds_until_its_lease_is_over_and_not_at_that_moment() -> None:
    assert view(15 * MINUTE_US - 1).holder == "key_1"
    assert view(15 * MINUTE_US).holder is None


def test_a_decided_item_has_no_holder_and_does_not_age() -> None:
    decided = view(
        90 * MINUTE_US,
        state=ReviewState.RESOLVED,
        verdict=Verdict.EDIT,
        resolved_at_us=20 * MINUTE_US,
        claim_expires_at_us=100 * MINUTE_US,
    )
    assert decided.holder is None
    assert decided.age_us == 20 * MINUTE_US
    assert decided.verdict == "corrected"
    assert not decided.open


def test_an_item_past_its_time_has_less_than_none_left() -> None:
    assert view(61 * MINUTE_US).left_us == -MINUTE_US
