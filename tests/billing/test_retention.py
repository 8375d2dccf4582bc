"""Erasing content: everything that says what was asked or answered goes, all money stays."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest
from billing_cases import STARTED_US, summary
from billing_world import FAR_US, add_request, add_tenant, emit, ended, settlement
from outside_reports import report
from sqlalchemy import Connection, Engine, select, text
from sqlalchemy.exc import IntegrityError
from unguarded import unguard

from billing import charged_hours, outside, receipts, retention, review
from billing.charged_tables import hour_spending
from billing.errors import InvalidRetention
from billing.gate import HoldGate
from billing.reconciliation import reconcile
from billing.retention import DAY_US, Chosen
from billing.settlement import Settlement
from metering import clock
from metering.committed_blocks import replay
from metering.database import snapshot, transaction
from metering.ingest_tables import outside_usage
from metering.ingestion.envelopes import usage_of
from metering.queries import request
from metering.tables import requests, usage_events


@pytest.fixture
def settler(database: Engine, tmp_path: Path) -> Settlement:
    made = settlement(tmp_path)
    with transaction(database) as connection:
        made._signer.register(connection)
        add_tenant(connection)
        add_tenant(connection, "ten_2")
        for number, (tenant, user) in enumerate(
            [("ten_1", "ann"), ("ten_1", "bob"), ("ten_2", "ann")]
        ):
            finish(connection, made, f"req_{number}", tenant, user)
        add_request(connection, "req_live")
        HoldGate().admit(
            connection,
            add_request(connection, "req_running", prompt="secret"),
            expires_at_us=FAR_US,
        )
    return made


def finish(
    connection: Connection, settler: Settlement, request_id: str, tenant: str, user: str, **fields
) -> None:
    content = {
        "prompt": "secret",
        "content_salt": salt_of(request_id),
        "parameters": {
            "seed": 7,
            "temperature": 0.5,
            "draft": True,
            "top_logprobs": None,
            "stop": ["secret"],
            "json_schema": {"const": "secret"},
            "logit_bias": {"5": 1.0},
        },
    }
    made = add_request(connection, request_id, tenant, end_user=user, **content)
    HoldGate().admit(connection, made, expires_at_us=FAR_US)
    final = ended(
        connection, settler, summary(request_id=request_id, **fields), output="secret answer"
    )
    emit(connection, final)


def salt_of(request_id: str) -> str:
    return hashlib.sha256(request_id.encode()).hexdigest()


def contents(connection: Connection) -> str:
    """Everything that is stored anywhere, as text."""
    return " ".join(
        str(tuple(row))
        for table in ("requests", "review_items", "usage_events")
        for row in connection.execute(text(f"SELECT * FROM {table}"))
    )


def complaints(connection: Connection) -> list[str]:
    """What reconciliation finds of requests that have ended."""
    return [
        found.check
        for found in reconcile(connection).differences
        if found.subject not in {"req_live", "req_running"}
    ]


def test_erasing_a_users_content_leaves_receipts_that_verify_and_books_that_agree(
    database: Engine, settler: Settlement
) -> None:
    with transaction(database) as connection:
        before = receipts.receipt(connection, "ten_1", "req_0")
        assert complaints(connection) == []
        assert retention.erase(connection, "ten_1", Chosen(end_user="ann")) == 1
        assert retention.erase(connection, "ten_1", Chosen(end_user="ann")) == 0
    with snapshot(database) as connection:
        row = request(connection, "ten_1", "req_0")
        assert row is not None
        assert (row.prompt, row.output, row.end_user) == (None, None, None)
        numbers = {"seed": 7, "temperature": 0.5, "draft": True, "top_logprobs": None}
        assert row.parameters == numbers
        assert replay(connection, "req_0") == []
        for kept in ("req_1", "req_2"):  # another user's, and another tenant's of that name
            other = request(connection, None, kept)
            assert other is not None
            assert other.output == "secret answer"
            assert replay(connection, kept) != []
        after = receipts.receipt(connection, "ten_1", "req_0")
        assert after is not None
        assert after | {"content_salt": salt_of("req_0")} == before
        assert "content_salt" not in after
        receipts.verify(after, receipts.public_keys(connection))
        assert complaints(connection) == []


def test_an_end_user_is_erased_where_no_content_is_left_and_in_reported_usage(
    database: Engine, settler: Settlement
) -> None:
    """Rated before, and waiting; beside users whose names are much like it."""
    for number, user in enumerate(["ann", "ann", "Ann", 'a"_%n', "anna"]):
        report(database, number, end_user=user, tags={"end_user": "ann"})
    outside.settle_waiting(database, settler)
    charged_hours.count_all(database, FAR_US)
    report(database, 5, STARTED_US + 1, end_user="ann")
    with transaction(database) as connection:
        retention.keep(connection, "ten_1", 0)
        assert retention.sweep(connection, "ten_1", FAR_US) == 2
        assert retention.erase(connection, "ten_1", Chosen(end_user="ann")) == 4
        assert retention.erase(connection, "ten_1", Chosen(end_user="ann")) == 0
        assert retention.erase(connection, "ten_1", Chosen(end_user='a"_%n')) == 1
        users = select(requests.c.end_user).where(requests.c.tenant_id == "ten_1")
        assert set(connection.scalars(users)) == {None, "bob", "Ann", "anna"}
        bodies = connection.scalars(select(outside_usage.c.body)).all()
        assert Counter(usage_of(body).end_user for body in bodies) == {None: 4, "Ann": 1, "anna": 1}
        mine = hour_spending.c.tenant_id == "ten_1"
        spent = connection.scalars(select(hour_spending.c.end_user).where(mine)).all()
        assert "ann" not in spent
    report(database, 0, end_user="ann", tags={"end_user": "ann"})  # a duplicate
    assert outside.settle_waiting(database, settler).settled == 1
    with snapshot(database) as connection:
        assert complaints(connection) == []
        assert "ann" not in set(connection.scalars(users))


def test_nothing_of_a_tenants_content_is_left_but_of_what_still_runs(
    database: Engine, settler: Settlement
) -> None:
    with transaction(database) as connection:
        assert retention.erase(connection, "ten_1", Chosen()) == 2
        assert retention.erase(connection, "ten_2", Chosen()) == 1
        left = contents(connection)
        assert left.count("secret") == 1
        assert not [number for number in range(4) if salt_of(f"req_{number}") in left]
        kinds = set(connection.scalars(select(usage_events.c.kind)))
        assert kinds == {"energy", "terminal"}
        assert complaints(connection) == []


def test_one_choice_is_erased_with_all_choices_of_its_order(
    database: Engine, settler: Settlement
) -> None:
    with transaction(database) as connection:
        for other in ("req_0.1", "req_0.15", "req_01"):
            finish(connection, settler, other, "ten_1", "ann")
        assert not retention.is_erased(connection, "req_0")
        assert retention.erase(connection, "ten_1", Chosen(request_id="req_0.1")) == 3
        assert retention.is_erased(connection, "req_0")
        assert not retention.is_erased(connection, "req_01")


def test_content_is_kept_for_as_many_days_as_its_tenant_says(
    database: Engine, settler: Settlement, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction(database) as connection:
        ends = connection.scalar(select(requests.c.ended_at_us).where(requests.c.id == "req_0"))
        assert ends is not None
        retention.keep(connection, "ten_1", 2)
        over = ends + 2 * DAY_US
        assert retention.next_due(connection, over - 1) is None
        assert retention.sweep(connection, "ten_1", over - 1) == 0
        assert retention.next_due(connection, over) == "ten_1"
        assert retention.next_due(connection, over, "ten_1") is None
        assert retention.sweep(connection, "ten_1", over) == 2
        assert retention.sweep(connection, "ten_1", over + 7 * DAY_US) == 0
        retention.keep(connection, "ten_2", None)
        assert retention.next_due(connection, FAR_US) is None
        assert retention.sweep(connection, "ten_2", FAR_US) == 0
        with pytest.raises(InvalidRetention):
            retention.keep(connection, "ten_1", -1)


def test_what_waits_for_a_reviewer_is_erased_after_the_verdict(
    database: Engine, settler: Settlement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "now_us", lambda: STARTED_US)
    with transaction(database) as connection:
        finish(connection, settler, "req_doubt", "ten_1", "eve", review_reason="audit")
        chosen = Chosen(request_id="req_doubt")
        assert retention.erase(connection, "ten_1", chosen) == 0
        token = review.claim(connection, "rev_req_doubt", "key_r")
        review.resolve(
            connection,
            "rev_req_doubt",
            "key_r",
            token,
            verdict="edit",
            note="secret note",
            edited_output="secret edit",
            reasons=["incorrect"],
            signer=settler._signer,
        )
        assert retention.erase(connection, "ten_1", chosen) == 1
        item = review.item(connection, "rev_req_doubt")
        assert (item.note, item.edited_output) == (None, None)
        assert complaints(connection) == []


def test_after_an_erasure_the_engines_caches_are_another_scope(
    database: Engine, settler: Settlement
) -> None:
    with transaction(database) as connection:
        before = retention.cache_scope(connection, "ten_1")
        other = retention.cache_scope(connection, "ten_2")
        retention.erase(connection, "ten_1", Chosen())
        assert retention.cache_scope(connection, "ten_1") != before
        assert retention.cache_scope(connection, "ten_2") == other


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM usage_events WHERE kind = 'block'",
        "DELETE FROM usage_events WHERE kind = 'terminal' AND request_id = 'req_0'",
        "UPDATE usage_events SET body = '{}' WHERE request_id = 'req_0'",
        "DELETE FROM compactions",
    ],
)
def test_only_a_compacted_requests_blocks_may_go(
    database: Engine, settler: Settlement, statement: str
) -> None:
    with transaction(database) as connection:
        retention.erase(connection, "ten_1", Chosen(request_id="req_0"))
    with pytest.raises(IntegrityError, match="append-only"), transaction(database) as connection:
        connection.execute(text(statement))


def test_a_request_whose_blocks_contradict_its_summary_keeps_them_as_evidence(
    database: Engine, settler: Settlement
) -> None:
    with transaction(database) as connection:
        unguard(connection, "request_summaries")
        connection.execute(text("UPDATE request_summaries SET blocks = blocks + 1"))
        retention.erase(connection, "ten_1", Chosen(request_id="req_0"))
        assert replay(connection, "req_0") != []
