"""The review queue as a machine: whatever reviewers, clock and sweeper do, on both databases.

Goal: an item is resolved at most once, by the opinion that the rules name; the pool holds exactly
the fees of open items, and each reviewer is due exactly its shares less what it was paid.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from billing_sweeps import lapse_reviews
from billing_world import books_balance
from databases import Databases, PostgresServer, SqliteFiles, reopened
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from review_desk import FEE_NANO, Clock, ReviewDesk, due, outcomes, pooled
from sqlalchemy import Engine

from billing import review, review_caps, reviewers
from billing.errors import InvalidPayout, ReviewConflict
from billing.money import split
from billing.reconciliation import reconcile
from billing.review_items import ReviewState, Verdict
from metering import clock
from metering.database import snapshot, transaction

REVIEWERS = ["key_anna", "key_ben", "key_cleo", "key_dan"]
TENANTS = ["ten_1", "ten_2"]
CAP_NANO = 3 * FEE_NANO
STRICTEST = ["reject", "edit", "approve"]
verdicts = st.sampled_from(["approve", "edit", "reject"])
pick = st.integers(0, 7)


class Queue(RuleBasedStateMachine):
    """Keeps beside the database what each item should be."""

    databases: Databases
    folder: Path

    def __init__(self) -> None:
        super().__init__()
        self.url = self.databases.create(tables=True)
        self.database = reopened(self.url)
        self.time = Clock()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(clock, "now_us", self.time)
        self.desk = ReviewDesk(self.database, self.folder, second=0.4)
        for tenant_id in TENANTS:
            self.desk.tenant(tenant_id)
        with transaction(self.database) as connection:
            review_caps.limit(connection, "ten_2", CAP_NANO)
        self.said: dict[str, list[tuple[str, str]]] = {}  # (reviewer, verdict), by request
        self.given: set[tuple[str, str, int, str]] = set()  # with the request and its token
        self.final: dict[str, str | None] = {}  # null: lapsed
        self.claims: dict[str, tuple[str, int]] = {}
        self.paid: Counter[str] = Counter()
        self.references = itertools.count()

    def teardown(self) -> None:
        with snapshot(self.database) as connection:
            found = reconcile(connection).differences
        # No engine ran here: what compares its counters with the requests has nothing to compare.
        assert [each for each in found if "review" in each.check or "account" in each.check] == []
        self.patch.undo()
        self.database.dispose()
        self.databases.drop(self.url)

    @rule(
        tenant_id=st.sampled_from(TENANTS),
        reason=st.sampled_from(["request_confidence", "unit_confidence", "missing_score", "audit"]),
        held=st.booleans(),
    )
    def queue(self, tenant_id: str, reason: str, held: bool) -> None:
        request_id = self.desk.answer(tenant_id=tenant_id, reason=reason, held=held)
        with snapshot(self.database) as connection:
            if review.of_request(connection, request_id) is not None:
                self.said[request_id] = []

    def open_items(self) -> list[str]:
        return [each for each in self.said if each not in self.final]

    @precondition(lambda self: self.said)
    @rule(number=pick, reviewer=st.sampled_from(REVIEWERS))
    def claim(self, number: int, reviewer: str) -> None:
        request_id = list(self.said)[number % len(self.said)]
        try:
            token = self.desk.claim(request_id, reviewer)
        except ReviewConflict:
            return
        assert request_id not in self.final
        assert reviewer not in {name for name, _ in self.said[request_id]}
        self.claims[request_id] = (reviewer, token)

    @precondition(lambda self: self.claims)
    @rule(
        number=pick,
        verdict=verdicts,
        wrong=st.sampled_from([0, 0, 0, 0, -1, 1]),
        stranger=st.sampled_from([None, None, None, *REVIEWERS]),
        second=st.booleans(),
    )
    def judge(
        self, number: int, verdict: str, wrong: int, stranger: str | None, second: bool
    ) -> None:
        request_id = list(self.claims)[number % len(self.claims)]
        reviewer, token = self.claims[request_id]
        actor = stranger or reviewer
        said = self.said[request_id]
        try:
            item = self.desk.judge(request_id, actor, verdict, token + wrong, second_opinion=second)
        except ReviewConflict:
            return
        opinion = (request_id, actor, token + wrong, verdict)
        if opinion in self.given:  # the same again
            return
        assert (actor, wrong) == (reviewer, 0)
        self.given.add(opinion)
        said.append((actor, verdict))
        assert request_id not in self.final
        assert item.opinions == len(said) <= 3
        if item.state is ReviewState.RESOLVED:
            assert item.verdict == verdict
            assert len(said) >= item.opinions_wanted
            assert len(said) != 2 or said[0][1] == verdict
            self.final[request_id] = verdict
        else:
            assert len(said) < item.opinions_wanted or said[0][1] != said[1][1]

    @precondition(lambda self: self.open_items())
    @rule(number=pick, reviewer=st.sampled_from(REVIEWERS), verdict=verdicts)
    def review_one(self, number: int, reviewer: str, verdict: str, second: bool = False) -> None:
        """From claim to verdict, as most go."""
        waiting = self.open_items()
        request_id = waiting[number % len(waiting)]
        before = self.claims.pop(request_id, None)
        self.claim(list(self.said).index(request_id), reviewer)
        if request_id in self.claims:
            self.judge(list(self.claims).index(request_id), verdict, 0, None, second)
        elif before is not None:
            self.claims[request_id] = before

    @precondition(lambda self: self.open_items())
    @rule(said=st.lists(verdicts, min_size=2, max_size=4))
    def review_through(self, said: list[str]) -> None:
        """One item after another opinion, by whoever is next."""
        request_id = self.open_items()[-1]
        for reviewer, verdict in zip(REVIEWERS, said, strict=False):
            if request_id not in self.final:
                self.review_one(self.open_items().index(request_id), reviewer, verdict, True)

    @rule(elapsed_us=st.sampled_from([1, review.LEASE_US, review.SLA_US // 3, review.SLA_US]))
    def sweep(self, elapsed_us: int) -> None:
        self.time.now_us += elapsed_us
        with transaction(self.database) as connection:
            lapse_reviews(connection, self.time.now_us, self.desk.signer)
        with snapshot(self.database) as connection:
            for request_id in self.open_items():
                item = review.of_request(connection, request_id)
                assert item is not None
                if item.is_open:
                    assert item.due_at_us > self.time.now_us or item.claimed_by is not None
                    continue
                said = [verdict for _, verdict in self.said[request_id]]
                stands = min(said, key=STRICTEST.index) if said else None
                assert item.verdict == stands
                self.final[request_id] = stands

    @rule(reviewer=st.sampled_from(REVIEWERS), part=st.sampled_from([None, 1, FEE_NANO]))
    def pay(self, reviewer: str, part: int | None) -> None:
        reference = f"transfer {next(self.references)}"
        with snapshot(self.database) as connection:
            owed = due(connection)[reviewer]
        for _ in range(2):
            with suppress(InvalidPayout), transaction(self.database) as connection:
                payout, _ = reviewers.pay_out(
                    connection, reviewer, "USD", reference=reference, amount_nano=part
                )
                assert payout.amount_nano == (owed if part is None else part) <= owed
        with snapshot(self.database) as connection:
            self.paid[reviewer] += owed - due(connection)[reviewer]

    @invariant()
    def the_books_say_what_happened(self) -> None:
        with snapshot(self.database) as connection:
            books_balance(connection)
            assert pooled(connection) == FEE_NANO * len(self.open_items())
            shares: Counter[str] = Counter()
            for request_id, verdict in self.final.items():
                item = review.of_request(connection, request_id)
                assert item is not None
                assert item.verdict == verdict
                assert item.state == ("lapsed" if verdict is None else "resolved")
                names = [name for name, _ in self.said[request_id]]
                assert len(set(names)) == len(names)
                if names:
                    parts = split(FEE_NANO, [1] * len(names))
                    shares.update(dict(zip(names, parts, strict=True)))
            assert due(connection) == Counter(
                {name: shares[name] - self.paid[name] for name in shares}
            )
            signed = outcomes(connection)
            assert signed == Counter(dict.fromkeys(self.final, 1))


def drive(databases: Databases, folder: Path, examples: int) -> None:
    machine = type("QueueMachine", (Queue,), {"databases": databases, "folder": folder})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=22,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_no_item_is_resolved_twice_whatever_happens_on_sqlite(
    sqlite_files: SqliteFiles, tmp_path: Path
) -> None:
    drive(sqlite_files, tmp_path, examples=8)


def test_no_item_is_resolved_twice_whatever_happens_on_postgresql(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    drive(postgres_server, tmp_path, examples=4)


def test_reviewers_at_once_give_each_item_its_opinions_and_one_verdict(
    database: Engine, tmp_path: Path
) -> None:
    """Given four reviewers who race for six items that want two opinions each."""
    desk = ReviewDesk(database, tmp_path, second=1.0)
    desk.tenant()
    items = [desk.answer() for _ in range(6)]
    start = threading.Barrier(len(REVIEWERS))

    def work(reviewer: str, verdict: str) -> None:
        start.wait()
        for _ in range(3):
            for request_id in items:
                with suppress(ReviewConflict):
                    # A lease of nothing: everybody may take the item from everybody.
                    token = desk.claim(request_id, reviewer, lease_us=0)
                    desk.judge(request_id, reviewer, verdict, token)

    said = dict(zip(REVIEWERS, ["approve", "reject", "approve", "edit"], strict=True))
    with ThreadPoolExecutor(len(said)) as pool:
        for future in [pool.submit(work, *each) for each in said.items()]:
            future.result()

    with snapshot(database) as connection:
        books_balance(connection)
        open_count = 0
        for request_id in items:
            item = review.of_request(connection, request_id)
            assert item is not None
            open_count += item.is_open
            assert outcomes(connection)[request_id] == (not item.is_open)
            if item.state is ReviewState.RESOLVED:
                assert item.verdict == Verdict(said[str(item.resolved_by)])
        assert pooled(connection) == FEE_NANO * open_count
        assert sum(due(connection).values()) == FEE_NANO * (len(items) - open_count)
    assert open_count < len(items)
