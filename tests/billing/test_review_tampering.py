"""Whatever is changed of what a review came to is refused, or found beside what was signed.

The tenant is given the corrected text whose hash was signed, and pays what its receipt says; what
is learnt from verdicts is what reviewers said.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from billing_cases import unit
from billing_sweeps import lapse_reviews
from billing_world import window
from review_desk import Clock, ReviewDesk
from sqlalchemy import Connection, Engine, Integer, Table, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from billing import request_evidence, retention, review, review_checks, verdict_triggers
from billing.retention import Chosen
from billing.review_tables import review_opinions
from billing.tables import review_items
from metering import clock
from metering.calibration_tables import confidence_labels
from metering.database import transaction
from metering.tables import meter_windows

ENDS = ("approve", "edit", "reject", "agreed", "split", "unsure", "lapsed")
OTHERS = {
    "verdict": ("approve", "edit", "reject"),
    "state": ("queued", "claimed", "resolved", "lapsed"),
    "paid_by": ("operator", "tenant"),
    "delivery": ("now", "held"),
    "reasons": ('["format"]', "[]"),
    "item_id": ("rev_req_8",),  # of a review that waits
    "request_id": ("req_8",),
    "tenant_id": ("ten_2",),
}
# What nothing that is compared says again: who held it and until when, and when it was what.
SAID_ONCE = {
    *("review_items.claimed_by", "review_items.claim_expires_at_us", "review_items.claim_token"),
    *("review_items.queued_at_us", "review_items.due_at_us", "review_items.resolved_at_us"),
    *("review_opinions.claim_token", "review_opinions.given_at_us"),
    # Of a first opinion, what the second one decided about.
    *("review_opinions.note", "review_opinions.edited_output", "review_opinions.reasons"),
    "review_opinions.verdict",
    # How many were wanted is compared by what they came to.
    "review_items.opinions_wanted",
}


@pytest.fixture
def desk(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReviewDesk:
    """Reviews that ended in every way, in the order of `ENDS`, and two that wait: `req_8` and 9."""
    time = Clock()
    monkeypatch.setattr(clock, "now_us", time)
    made = ReviewDesk(database, tmp_path)
    for tenant_id in ("ten_1", "ten_2"):
        made.tenant(tenant_id)
    ended = [
        made.answer(unit(8, tier="review"), held=end in {"edit", "reject"}, output="text")
        for end in ENDS
    ]
    by_end = dict(zip(ENDS, ended, strict=True))
    for end in ("approve", "edit", "reject"):
        made.judge(by_end[end], "key_anna", end, note="looked at it")
    made.judge(by_end["agreed"], "key_anna", "edit", second_opinion=True, edited_output="first")
    made.judge(by_end["agreed"], "key_ben", "edit")
    made.judge(by_end["split"], "key_anna", "approve", second_opinion=True)
    made.judge(by_end["split"], "key_ben", "edit", edited_output="other")
    made.judge(by_end["split"], "key_cleo", "edit", note="as the second")
    made.judge(by_end["unsure"], "key_anna", "reject", second_opinion=True)
    time.now_us += review.SLA_US
    with transaction(database) as connection:
        lapse_reviews(connection, time.now_us, made.signer)
        window(connection, "engine-1", 5)
    made.answer()
    made.claim(made.answer(reason="audit"), "key_anna")
    return made


def changes(connection: Connection, table: Table) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each change of one value that is stored of a review that ended."""
    query = select(table)
    if table is review_items:
        query = query.where(table.c.state.in_(["resolved", "lapsed"]))
    for row in connection.execute(query).mappings():
        own = {f"own_{column.name}": row[column.name] for column in table.primary_key}
        where = " AND ".join(f'"{name.removeprefix("own_")}" = :{name}' for name in own)
        for column in table.columns:
            for changed in others(column.name, row[column.name], column.type):
                statement = f'UPDATE "{table.name}" SET "{column.name}" = :changed WHERE {where}'
                yield f"{table.name}.{column.name}", statement, {"changed": changed, **own}


def others(name: str, value: Any, kind: Any) -> Iterator[Any]:
    if name in OTHERS:
        same = "[]" if value is None else value  # no reasons are none, however it is said
        yield from (each for each in OTHERS[name] if each != same)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(kind, Integer):
        yield 1 if value is None else value + 1
    else:
        yield "x" if value is None else f"{value[:-1]}x"


def differences(connection: Connection) -> set[str]:
    """The names of what differs in the reviews of all requests."""
    return {
        name
        for evidence in request_evidence.gather(connection)
        for name, expected, actual in review_checks.check(evidence)
        if expected != actual
    }


def outcome(connection: Connection, statement: str, values: dict[str, Any]) -> str:
    """What comes of a change, which is taken back: "refused", "found" or "unseen"."""
    attempt = connection.begin_nested()
    try:
        connection.execute(text(statement), values)
        return "found" if differences(connection) else "unseen"
    except DBAPIError:
        return "refused"
    finally:
        attempt.rollback()


def test_reviews_as_they_ended_have_no_difference(desk: ReviewDesk) -> None:
    with transaction(desk.database) as connection:
        assert differences(connection) == set()
        rows = connection.execute(select(review_items.c.state).order_by(review_items.c.id))
        assert list(rows.scalars()) == [*["resolved"] * 6, "lapsed", "queued", "claimed"]


def test_the_database_refuses_to_change_a_review_that_ended(desk: ReviewDesk) -> None:
    """Of every table, whatever the value: the texts may be erased, and nothing else."""
    with transaction(desk.database) as connection:
        for table in (review_items, review_opinions, confidence_labels, meter_windows):
            tried = [
                (name, outcome(connection, statement, values))
                for name, statement, values in changes(connection, table)
            ]
            assert len(tried) > 10
            assert [each for each in tried if each[1] != "refused"] == []


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("DELETE FROM review_items WHERE id = 'rev_req_7'", "a review is never deleted"),
        ("DELETE FROM review_opinions", "an opinion is kept"),
        ("DELETE FROM confidence_labels", "confidence_labels is append-only"),
        ("DELETE FROM meter_windows", "meter_windows is append-only"),
        ("UPDATE review_items SET delivery = 'held' WHERE id = 'rev_req_7'", "queued with"),
        ("UPDATE review_items SET verdict = 'approve' WHERE id = 'rev_req_3'", "that has ended"),
    ],
)
def test_a_refusal_says_why(desk: ReviewDesk, statement: str, message: str) -> None:
    with (
        pytest.raises(IntegrityError, match=message),
        transaction(desk.database) as connection,
    ):
        connection.execute(text(statement))


@pytest.mark.parametrize("name", verdict_triggers.AT_QUEUEING)
def test_what_a_waiting_review_was_queued_with_never_changes(desk: ReviewDesk, name: str) -> None:
    column = review_items.c[name]
    with transaction(desk.database) as connection:
        query = select(column).where(review_items.c.id == "rev_req_8")
        for changed in others(name, connection.scalar(query), column.type):
            statement = f"UPDATE review_items SET {name} = :changed WHERE id = 'rev_req_8'"
            assert outcome(connection, statement, {"changed": changed}) == "refused"


@pytest.mark.parametrize(
    ("statement", "named"),
    [
        (
            "UPDATE review_items SET edited_output = NULL WHERE id = 'rev_req_2'",
            {"review's verdict = deciding opinion", "signed outcome = review"},
        ),
        (
            "UPDATE review_opinions SET edited_output = NULL WHERE item_id = 'rev_req_2'",
            {"review's verdict = deciding opinion"},
        ),
        (
            "UPDATE review_items SET note = NULL WHERE id = 'rev_req_1'",
            {"review's verdict = deciding opinion"},
        ),
    ],
)
def test_a_text_that_is_gone_while_its_request_stays_is_found(
    desk: ReviewDesk, statement: str, named: set[str]
) -> None:
    with transaction(desk.database) as connection:
        assert connection.execute(text(statement)).rowcount == 1
        assert differences(connection) == named


def test_an_erased_review_has_no_difference_and_can_get_no_text_again(desk: ReviewDesk) -> None:
    with transaction(desk.database) as connection:
        assert retention.erase(connection, "ten_1", Chosen()) == len(ENDS)
        assert differences(connection) == set()
    for table, key in (("review_items", "id"), ("review_opinions", "item_id")):
        for name in verdict_triggers.TEXTS:
            statement = f"UPDATE {table} SET {name} = 'x' WHERE {key} = 'rev_req_2'"
            with (
                pytest.raises(IntegrityError, match="never changes"),
                transaction(desk.database) as connection,
            ):
                connection.execute(text(statement))


def test_whoever_removes_the_guards_is_found_by_what_was_signed(desk: ReviewDesk) -> None:
    with transaction(desk.database) as connection:
        for statement in verdict_triggers.drop(connection.dialect.name):
            connection.exec_driver_sql(statement)
        for table in (review_items, review_opinions):
            seen: dict[str, set[str]] = {}
            for name, statement, values in list(changes(connection, table)):
                seen.setdefault(name, set()).add(outcome(connection, statement, values))
            unseen = {name for name, outcomes in seen.items() if "unseen" in outcomes}
            assert unseen == {name for name in SAID_ONCE if name.startswith(f"{table.name}.")}
        for changed, named in (
            ("DELETE FROM review_opinions WHERE number = 2", "review's opinions = those given"),
            ("UPDATE review_items SET state = 'lapsed', verdict = NULL", "signed outcome = review"),
            ("UPDATE review_items SET state = 'queued'", "outcomes signed = ended review"),
        ):
            attempt = connection.begin_nested()
            connection.execute(text(changed))
            assert named in differences(connection)
            attempt.rollback()
        connection.rollback()
