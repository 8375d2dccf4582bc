"""The measurements measure what they say, on something small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tiny_models import write_tiny_dfm

from api.measurement import overhead, page
from api.measurement.cli import measure
from api.settings import Settings
from billing.reconciliation import reconcile
from metering.database import open_database, snapshot


def test_rated_lines_are_counted_against_the_goal() -> None:
    done = CliRunner().invoke(measure, ["rating", "--requests", "100", "--json"])
    found = json.loads(done.output)
    assert found["rated_lines"] >= 500
    assert found["to_goal"] == pytest.approx(found["lines_per_s_per_core"] / 50_000, abs=0.01)


def test_the_page_is_read_whole_on_both_databases(blank_database_url: str) -> None:
    found = page.measure(requests=1000, tenants=4, reads=3, database_url=blank_database_url)
    assert (found["requests"], found["reads"]) == (1000, 3)
    assert 0 < found["page_ms_median"] <= found["page_ms_max"]


def test_the_bound_is_students() -> None:
    # Mean 3, standard deviation 1.581, five values: 3 + 2.132 x 1.581 / 2.236.
    assert overhead.upper_bound([1, 2, 3, 4, 5]) == pytest.approx(4.507, abs=0.001)


def test_both_arms_do_the_work_and_the_books_of_one_of_them_agree(
    tmp_path: Path, sqlite_url: str
) -> None:
    settings = Settings(
        home=tmp_path, model=str(write_tiny_dfm(tmp_path / "tiny.dfm")), engine={"threads": 1}
    )
    found = overhead.measure(
        settings, ["one", "two"], concurrency=2, max_tokens=4, pairs=2, database_url=sqlite_url
    )
    assert min(found["bare_tokens_per_s"], found["metered_tokens_per_s"]) > 0
    assert min(found["bare_cpu_ms_per_request"], found["metered_cpu_ms_per_request"]) > 0
    assert found["share_lost"] <= found["share_lost_95_upper"]
    database = open_database(sqlite_url)
    with snapshot(database) as connection:
        books = reconcile(connection)
    database.dispose()
    # Two pairs of two requests, and the first one alone before them.
    assert (books.totals.requests, books.totals.receipts) == (5, 5)
    assert books.differences == ()
