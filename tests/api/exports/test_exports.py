"""Exports over HTTP and from the command line: what is in the files, and who may have them."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from api_app import make_client
from api_cases import HeldClock, House, bearer, make_house
from api_settled import Desk
from billing_cases import unit
from click.testing import CliRunner
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api import projects
from api.exports.cli import export
from api.exports.routes import exports_router
from api.roles import Role
from api.usage.routes import usage_router
from billing import receipts
from billing.exports import files, records
from billing.exports.columns import COLUMNS, NAMES
from billing.exports.parquet import to_parquet
from billing.invoices import closing
from metering.cli_context import CliContext
from metering.database import transaction

Client = TestClient[Litestar]
DECEMBER = {"start": "2026-12-01T00:00:00Z", "end": "2027-01-01T00:00:00Z"}
FORMULA = "=cmd|' /C calc'!A0"


@pytest.fixture
def house(sqlite_database: Engine, held_clock: HeldClock, tmp_path: Path) -> House:
    """Five requests in December, two of them somebody's; the month is closed in January."""
    desk = Desk.open(sqlite_database, tmp_path)
    house = make_house(sqlite_database)
    desk.fund(house.tenant_id)
    with transaction(sqlite_database) as connection:
        project = projects.create(connection, house.tenant_id, "Research")
    mine = {"end_user": FORMULA, "tags": {"team": "blau, grün"}, "project_id": project.id}
    for number in range(5):
        held_clock.advance(86_400)
        key = house.key_ids[Role.DEVELOPER]
        units = (unit(300_000), unit(100, "fragment", "reduced"))
        carries = mine if number < 2 else None
        desk.settle(house.tenant_id, key, f"req_{number}", *units, carries=carries)
    held_clock.advance(35 * 86_400)
    list(closing.close(sqlite_database, "2026-12"))
    return house


@pytest.fixture
def client(sqlite_database: Engine, house: House) -> Iterator[Client]:
    with make_client(
        sqlite_database, exports_router, usage_router, served=None, replicas=None
    ) as opened:
        yield opened


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_focus_file_adds_up_to_its_invoice_in_both_forms(client: Client, house: House) -> None:
    finance = bearer(house.finance)
    answer = client.get("/exports/focus?period=2026-12", headers=finance)
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert "focus-2026-12" in answer.headers["content-disposition"]
    rows = rows_of(answer.text)
    assert tuple(rows[0]) == NAMES
    charged = sum(Decimal(r["BilledCost"]) for r in rows if r["ChargeCategory"] == "Usage")
    charges = client.get("/charges", headers=finance, params=DECEMBER).json()
    assert charged == sum(
        Decimal(item["amount"]) for item in charges["items"] if item["component"] != "minimum"
    )
    invoiced = [Decimal(row["BilledCost"]) for row in rows if row["InvoiceId"] == "INV-000001"]
    assert sum(invoiced) == 0  # all of it was paid from credit
    assert {row["SubAccountName"] for row in rows} == {"", "Research"}
    assert {row["Tags"] for row in rows} == {"", '{"team":"blau, grün"}'}
    packed = client.get("/exports/focus?period=2026-12&format=parquet", headers=finance)
    assert packed.headers["content-type"] == "application/vnd.apache.parquet"
    table = pyarrow.parquet.read_table(io.BytesIO(packed.content))
    assert tuple(table.column_names) == NAMES
    assert [as_written(row) for row in table.to_pylist()] == [as_written(row) for row in rows]


def as_written(row: dict[str, Any]) -> dict[str, Any]:
    """A row of Parquet as the row of the CSV file must be."""
    return {name: unquoted(value) for name, value in row.items()}


def unquoted(value: Any) -> Any:
    """A field without what its file adds: quotes, zeros, the form of a moment."""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%dT%H:%M:%SZ}"
    text = "" if value is None else str(value).removeprefix("'")
    try:
        return Decimal(text).normalize()
    except ArithmeticError:
        return text


def test_usage_goes_through_with_its_bearers_and_adds_up(client: Client, house: House) -> None:
    owner = bearer(house.owner)
    answer = client.get("/exports/usage", headers=owner)
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert [each["request_id"] for each in found] == [f"req_{n}" for n in range(5)]
    first = found[0]
    assert (first["end_user"], first["project"]) == (FORMULA, "Research")
    assert first["tags"] == {"team": "blau, grün"}
    assert (first["complete_units"], first["fragment_units"]) == (1, 1)
    assert (first["energy_class"], first["joules"]) == ("estimated", "12.3")
    charges = client.get("/charges", headers=owner, params=DECEMBER).json()
    assert sum(Decimal(each["charged"]) for each in found) == Decimal(charges["total"])
    flat = rows_of(client.get("/exports/usage?format=csv", headers=owner).text)
    assert list(flat[0]) == list(first)
    assert flat[0]["end_user"] == "'" + FORMULA  # a spreadsheet would run it
    assert [row["charged"] for row in flat] == [each["charged"] for each in found]
    query = {"start": "2026-12-03T00:00:00Z", "end": "2026-12-04T00:00:00Z"}
    some = client.get("/exports/usage", headers=owner, params=query)
    assert [json.loads(line)["request_id"] for line in some.text.splitlines()] == ["req_1"]


def test_exported_receipts_verify_and_their_lines_add_up(client: Client, house: House) -> None:
    owner = bearer(house.owner)
    keys = client.get("/receipt-keys").json()
    lines = client.get("/exports/receipts", headers=owner).text.splitlines()
    signed = [json.loads(line) for line in lines]
    verified = [receipts.verify(each, keys) for each in signed]
    flat = rows_of(client.get("/exports/receipts?format=csv", headers=owner).text)
    totals: Counter[str] = Counter()
    for row in flat:
        totals[row["request_id"]] += int(Decimal(row["amount"]).scaleb(9))
    assert totals == {each.request_id: each.total_nano for each in verified}
    assert {row["receipt_sha256"] for row in flat} == {each["sha256"] for each in signed}


def test_pages_of_records_follow_each_other_without_gap_or_repeat(
    client: Client, house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = client.get("/exports/usage", headers=bearer(house.owner)).text
    for size in (1, 2, 5):
        monkeypatch.setattr(records, "PAGE", size)
        assert client.get("/exports/usage", headers=bearer(house.owner)).text == whole


def test_a_file_is_written_piece_by_piece() -> None:
    drawn = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal drawn
        while True:
            drawn += 1
            yield {"BilledCost": Decimal(drawn), "BillingAccountId": "ten_1"}

    for write in (files.to_csv, to_parquet):
        drawn = 0
        made = write(COLUMNS, endless())
        sizes = [len(next(made)) for _ in range(3)]
        assert all(sizes)
        assert drawn == 3 * files.PIECE_ROWS


@pytest.mark.parametrize("path", ["/exports/focus?period=2026-12", "/exports/usage"])
def test_nobody_exports_what_is_not_theirs(
    client: Client, house: House, sqlite_database: Engine, path: str
) -> None:
    other = make_house(sqlite_database, "Umbrella")
    named = f"{path}{'&' if '?' in path else '?'}tenant_id={house.tenant_id}"
    assert client.get(named, headers=bearer(other.owner)).status_code == 404
    assert client.get(path, headers=bearer(house.reviewer)).status_code == 403
    assert client.get(path, headers=bearer(house.operator)).json()["parameter"] == "tenant_id"
    operator = client.get(named, headers=bearer(house.operator))
    assert operator.text == client.get(path, headers=bearer(house.owner)).text != ""
    theirs = client.get(path, headers=bearer(other.owner)).text
    assert house.tenant_id not in theirs


@pytest.mark.parametrize(
    ("query", "parameter"),
    [
        ("focus?period=2026-13", "period"),
        ("focus?period=2026-12&format=xml", "format"),
        ("usage?format=pdf", "format"),
    ],
)
def test_a_bad_export_is_refused_before_it_begins(
    client: Client, house: House, query: str, parameter: str
) -> None:
    answer = client.get(f"/exports/{query}", headers=bearer(house.owner))
    assert (answer.status_code, answer.json()["parameter"]) == (400, parameter)


def test_the_command_writes_what_the_api_serves(
    client: Client, house: House, sqlite_url: str, tmp_path: Path
) -> None:
    def run(*arguments: str) -> None:
        context = CliContext(tmp_path, sqlite_url)
        done = CliRunner().invoke(export, arguments, obj=context, catch_exceptions=False)
        assert done.exit_code == 0, done.output

    owner = bearer(house.owner)
    path = tmp_path / "out"
    for command, served in (
        (("focus", "--period", "2026-12"), "focus?period=2026-12"),
        (("usage", "--start", "2026-12-03"), "usage?start=2026-12-03T00:00:00Z"),
        (("receipts", "--format", "csv"), "receipts?format=csv"),
    ):
        run(*command, "--tenant", house.tenant_id, "--output", str(path))
        assert path.read_bytes() == client.get(f"/exports/{served}", headers=owner).content
    run("focus", "--period", "2026-12", "--format", "parquet", "--output", str(path))
    assert pyarrow.parquet.read_table(path).num_rows > 5
