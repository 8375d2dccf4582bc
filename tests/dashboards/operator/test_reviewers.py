"""Booking payouts: what the form showed is what was paid, however old the form is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from billing_cases import unit
from browser_pages import World
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api import audit
from billing import review, reviewers
from billing.money import format_nano
from billing.review_items import Verdict
from metering.database import snapshot, transaction


class Operator:
    """Somebody at the reviewers' page, whose form may be older than the accounts."""

    def __init__(self, world: World, client: TestClient[Litestar]) -> None:
        self.world = world
        self._client = client
        self._send("/sign-in", self._fields("/sign-in") | {"key": world.house.operator})

    def judge(self) -> None:
        """Let a reviewer earn one more fee."""
        item_id = f"rev_{self.world.settle(unit(8, tier='review'), geo_mean='0.4100')}"
        with transaction(self.world.database) as connection:
            token = review.claim(connection, item_id, "key_anna")
            review.resolve(
                connection,
                item_id,
                "key_anna",
                token,
                verdict=Verdict.APPROVE,
                signer=self.world.desk.signer,
            )

    def form(self) -> dict[str, str]:
        return self._fields("/reviewers")

    def book(self, form: dict[str, str], **fields: str) -> str:
        return self._send("/reviewers/payouts", form | fields)

    def due_nano(self) -> int:
        with snapshot(self.world.database) as connection:
            (account,) = reviewers.listing(connection, "key_anna")
            return account.due_nano

    def post(self, path: str, fields: dict[str, str]) -> httpx.Response:
        return self._client.post(f"/dashboard{path}", data=fields)

    def _fields(self, page: str) -> dict[str, str]:
        shown = self._client.get(f"/dashboard{page}").text
        return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', shown))

    def _send(self, path: str, fields: dict[str, str]) -> str:
        sent = self.post(path, fields)
        assert sent.status_code == 200
        notice = re.search(r'class="notice (?:done|failed)"[^>]*>([^<]*)<', sent.text)
        return notice[1] if notice else ""


@pytest.fixture
def operator(database: Engine, tmp_path: Path) -> Iterator[Operator]:
    world = World(database, tmp_path)
    with TestClient(world.app()) as client:
        made = Operator(world, client)
        made.judge()
        yield made


def test_what_became_due_after_the_form_was_shown_is_not_booked_as_paid(
    operator: Operator,
) -> None:
    fee_nano = operator.due_nano()
    form = operator.form()
    operator.judge()
    said = operator.book(form, reference="transfer 1")
    assert said == f"{format_nano(fee_nano)} USD are booked as paid."
    assert operator.due_nano() == fee_nano


def test_a_payout_is_booked_once_whoever_sends_the_form_again(operator: Operator) -> None:
    form = operator.form()
    said = operator.book(form, reference="transfer 1")
    assert operator.book(form, reference="transfer 1") == said
    assert "is due 0 USD" in operator.book(form, reference="transfer 2")
    with snapshot(operator.world.database) as connection:
        written = audit.entries(connection, limit=20)
    assert [line.action for line in written].count("review.paid_out") == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"reference": "x" * 101},
        {"amount": ""},
        {"amount": "-1"},
        {"amount": "1e99"},
        {"currency": "EUR"},
        {"reviewer_id": "key_nobody"},
        {"reviewer_id": "\u202e" + "x" * 10_000},
    ],
)
def test_a_form_that_was_tampered_with_is_refused_in_a_sentence(
    operator: Operator, fields: dict[str, str]
) -> None:
    due_nano = operator.due_nano()
    assert operator.book(operator.form() | {"reference": "transfer 1"}, **fields).endswith(".")
    assert operator.due_nano() == due_nano


@pytest.mark.parametrize("field", ["reference", "currency", "reviewer_id", "anything"])
def test_a_form_with_a_character_that_no_database_takes_is_refused(
    operator: Operator, field: str
) -> None:
    answer = operator.post("/reviewers/payouts", operator.form() | {field: "a\0b"})
    assert answer.status_code == 400
    assert "the character NUL" in answer.text
