"""Spending is the same to the nano whether its hours were counted or not, and forgets a user."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest
from billing_world import add_tenant, settlement
from invoice_world import HOUR_US, Month, at, priced
from sqlalchemy import Engine, select, update

from billing import charged_hours, refunds, retention
from billing.charged_tables import hour_spending
from billing.invoices import checks
from billing.retention import Chosen
from billing.spending import Division, spending
from metering.database import snapshot, transaction

START_US = at("2026-11-10 12:00")
QUARTER_US = HOUR_US // 4


@dataclass(frozen=True)
class Served:
    """A request: when it ended, what it carries, what it came to."""

    at_us: int
    user: str | None
    team: str | None
    charged_nano: int


@pytest.fixture
def month(database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Month:
    made = Month(database, settlement(tmp_path), monkeypatch)
    with transaction(database) as connection:
        made.settlement._signer.register(connection)
        add_tenant(connection, credit="1000", pays=priced())
    made.now_us = START_US + 99 * HOUR_US
    return made


def serve(month: Month, number: int) -> Served:
    """The numbers go around by users, tags and quarters of six hours."""
    user, team = [None, "ann", "bob"][number % 3], [None, "red", "blue"][number // 3 % 3]
    at_us = START_US + number * 7 % 24 * QUARTER_US
    tags = None if team is None else {"team": team, "run": str(number)}
    charged = month.serve(
        f"req_{number}",
        ended_us=at_us,
        tokens=100 + number,
        carries={"end_user": user, "tags": tags, "project_id": f"prj_{number % 2}"},
    )
    return Served(at_us, user, team, charged)


def agrees(month: Month, served: list[Served], adjusted_nano: int = 0) -> None:
    """Any span's spending is that of its requests."""
    whole = (START_US, START_US + 6 * HOUR_US)
    for start_us, end_us in (
        whole,
        (START_US + QUARTER_US, START_US + 17 * QUARTER_US),
        (START_US + 3, START_US + QUARTER_US),
        (whole[1], whole[1] + HOUR_US),
    ):
        within = [each for each in served if start_us <= each.at_us < end_us]
        with snapshot(month.database) as connection:
            by_user = spending(connection, "ten_1", start_us, end_us, Division.END_USER)
            by_team = spending(connection, "ten_1", start_us, end_us, Division.TAG, tag="team")
        for found, name in ((by_user, "user"), (by_team, "team")):
            charged: Counter[str | None] = Counter()
            for each in within:
                charged[getattr(each, name)] += each.charged_nano
            assert {each.name: each.charged_nano for each in found} == charged
            assert sum(each.requests for each in found) == len(within)
            dearest = [each.charged_nano for each in found]
            assert dearest == sorted(dearest, reverse=True)
        if (start_us, end_us) == whole:
            assert sum(each.adjusted_nano for each in by_user) == adjusted_nano
    with snapshot(month.database) as connection:
        assert list(charged_hours.check(connection)) == []


def count_all(month: Month) -> None:
    charged_hours.count_all(month.database, month.now_us)


def test_spending_is_the_same_before_and_after_its_hours_are_counted(month: Month) -> None:
    served = [serve(month, number) for number in range(18)]
    agrees(month, served)
    count_all(month)
    agrees(month, served)
    served += [serve(month, number) for number in range(18, 21)]  # late, into counted hours
    agrees(month, served)
    with transaction(month.database) as connection:
        what = {"tenant_id": "ten_1", "request_id": "req_4", "amount_nano": 5}
        signer = month.settlement._signer
        refunds.correct(connection, signer, **what, reference="r", reason="x")
    agrees(month, served, adjusted_nano=-5)
    count_all(month)
    agrees(month, served, adjusted_nano=-5)


def test_an_erased_user_is_in_no_count_and_what_it_spent_is(month: Month) -> None:
    served = [serve(month, number) for number in range(9)]
    count_all(month)
    with transaction(month.database) as connection:
        retention.erase(connection, "ten_1", Chosen(end_user="ann"))
        assert "ann" not in set(connection.scalars(select(hour_spending.c.end_user)))
    left = [
        Served(each.at_us, None if each.user == "ann" else each.user, each.team, each.charged_nano)
        for each in served
    ]
    agrees(month, left)
    count_all(month)
    agrees(month, left)


def test_a_wrong_count_of_spending_is_found(month: Month) -> None:
    serve(month, 0)
    count_all(month)
    with transaction(month.database) as connection:
        connection.execute(update(hour_spending).values(charged_nano=1))
    checked = {each.check for each in checks.unbilled(month.database)}
    assert checked == {"spending counted by the hour = lines"}
