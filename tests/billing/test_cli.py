"""The commands: credit, tariffs, receipts and reconciliation, on both databases."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from billing_cases import summary
from billing_world import FAR_US, add_request, add_tenant, emit, ended
from click.testing import CliRunner, Result
from sqlalchemy import text

from billing import catalogue, receipts, review
from billing.cli import credit, tariff
from billing.gate import HoldGate
from billing.receipts_cli import KEY_FILE, receipt
from billing.reconciliation_cli import reconcile
from billing.settlement import Settlement
from billing.signing import Signer
from metering.cli_context import CliContext
from metering.database import open_database, transaction

TARIFF = """\
schema: dflash.tariff/1
name: mine
title: Mine
currency: USD
input: {per_million: "1"}
"""

Run = Callable[..., Result]


@pytest.fixture
def audited() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def context(database_url: str, tmp_path: Path, audited: list[dict[str, Any]]) -> CliContext:
    return CliContext(
        tmp_path, database_url, record=lambda _connection, **entry: audited.append(entry)
    )


@pytest.fixture
def run(context: CliContext) -> Run:
    def invoke(command: click.Command, *arguments: str | Path, status: int = 0) -> Result:
        result = CliRunner().invoke(command, [str(each) for each in arguments], obj=context)
        if status == 0 and result.exception is not None:
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    return invoke


@pytest.fixture
def served(context: CliContext) -> Settlement:
    """One request that was served, audited and settled with this installation's key."""
    database = open_database(context.database_url)
    settler = Settlement(Signer.open(context.home / KEY_FILE))
    with transaction(database) as connection:
        settler._signer.register(connection)
        add_tenant(connection)
        request = add_request(connection)
        HoldGate().admit(connection, request, expires_at_us=FAR_US)
        emit(connection, ended(connection, settler, summary(review_reason="audit")))
    database.dispose()
    return settler


def stored(context: CliContext, request_id: str = "req_1") -> tuple[Any, Any, Any]:
    database = open_database(context.database_url)
    with transaction(database) as connection:
        found = (
            receipts.receipt(connection, None, request_id),
            receipts.adjustments(connection, request_id),
            receipts.public_keys(connection),
        )
    database.dispose()
    return found


def test_credit_is_granted_once_per_reference_and_audited(
    run: Run, served: Settlement, audited: list[dict[str, Any]]
) -> None:
    grant = ("grant", "ten_1", "2.5", "--reference", "invoice-7", "--json")
    first = json.loads(run(credit, *grant).output)
    assert json.loads(run(credit, *grant).output) == first
    assert first["available"] == "3.499994"
    assert audited == [
        {
            "action": "credit.granted",
            "subject": "invoice-7",
            "tenant_id": "ten_1",
            "amount_nano": 2_500_000_000,
        }
    ]
    assert "3.499994 USD available, 0 held" in run(credit, "show", "ten_1").output


def test_without_a_reference_every_grant_is_a_new_one(run: Run, served: Settlement) -> None:
    run(credit, "grant", "ten_1", "1")
    assert "2.999994" in run(credit, "grant", "ten_1", "1").output


@pytest.mark.parametrize("amount", ["0", "-1", "NaN", "a lot"])
def test_an_amount_that_is_none_grants_nothing(run: Run, served: Settlement, amount: str) -> None:
    run(credit, "grant", "ten_1", "--", amount, status=1)
    assert "0.999994" in run(credit, "show", "ten_1").output


def test_credit_beyond_what_an_account_takes_is_refused_and_the_books_hold(
    run: Run, served: Settlement
) -> None:
    for _ in range(9):
        run(credit, "grant", "ten_1", "999999999")
    before = run(credit, "show", "ten_1").output
    run(credit, "grant", "ten_1", "999999999", status=1)
    assert run(credit, "show", "ten_1").output == before
    assert run(reconcile).output.startswith("0 differences")


def test_credit_of_nobody_is_an_error(run: Run) -> None:
    run(credit, "show", "ten_none", status=1)
    run(credit, "grant", "ten_none", "1", status=1)


def test_a_tariff_is_published_assigned_listed_and_shown(
    run: Run, served: Settlement, tmp_path: Path, audited: list[dict[str, Any]]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(TARIFF)
    assert run(tariff, "validate", file).output == "valid: mine, USD\n"
    assert run(tariff, "publish", file).output == "mine@1\n"
    assert run(tariff, "publish", file).output == "mine@1\n"
    run(tariff, "assign", "ten_1", "mine")
    listed = json.loads(run(tariff, "list", "--json").output)
    assert {"mine@1", "token@1"} <= {version["id"] for version in listed["published"]}
    assert "mine@1" in run(tariff, "list").output
    shown = run(tariff, "show", "mine@1").output
    file.write_text(shown)
    assert run(tariff, "publish", file).output == "mine@1\n"
    assert [entry["action"] for entry in audited][-1] == "tariff.published"


def test_a_customers_own_prices_are_previewed_and_put_in_force(
    run: Run, context: CliContext, tmp_path: Path, audited: list[dict[str, Any]]
) -> None:
    database = open_database(context.database_url)
    with transaction(database) as connection:
        add_tenant(connection)
    database.dispose()
    file = tmp_path / "mine.yaml"
    file.write_text(TARIFF)
    assert run(tariff, "preview", file, "--period", "2026-11").output == (
        "ten_1: 0 USD instead of 0 (0)\n"
    )
    changes = tmp_path / "changes.yaml"
    changes.write_text('output: {per_million: "0.2"}')
    said = run(tariff, "override", "ten_1", changes).output
    assert "made from test@1" in said
    assert audited[-1]["action"] == "tariff.overridden"
    changes.write_text("- 1")
    assert "must be a mapping" in run(tariff, "override", "ten_1", changes, status=1).output
    run(tariff, "publish", file, "--effective-from", "2199-01-01")
    assert json.loads(run(tariff, "list", "--json").output)["published"][0]["effective_from"] == (
        "2199-01-01T00:00:00.000000Z"
    )


def test_shipped_tariffs_are_shown_before_they_are_published(run: Run) -> None:
    assert json.loads(run(tariff, "list", "--json").output)["shipped"] == [
        "composite",
        "confidence",
        "energy",
        "semantic",
        "token",
    ]
    assert "shipped, not published yet" in run(tariff, "list").output
    assert "name: token" in run(tariff, "show", "token").output


def test_a_bad_tariff_is_refused_with_all_its_faults(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(TARIFF.replace('"1"', "0.1").replace("USD", "dollars"))
    for command in ("validate", "publish"):
        output = run(tariff, command, file, status=1).output
        assert "input.per_million: must be a quoted decimal" in output
        assert "currency: must be an ISO 4217 code" in output
    file.write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in run(tariff, "validate", file, status=1).output


def test_a_receipt_is_verified_with_the_keys_it_came_with(
    run: Run, context: CliContext, served: Settlement, tmp_path: Path
) -> None:
    envelope, _, keys = stored(context)
    receipt_file, keys_file = tmp_path / "receipt.json", tmp_path / "keys.json"
    receipt_file.write_text(json.dumps(envelope))
    keys_file.write_text(json.dumps(keys))
    output = run(receipt, "verify", receipt_file, "--keys", keys_file).output
    assert output.startswith("valid: req_1, 0.000006 USD, issued 20")
    assert served._signer.kid in output
    assert "the text itself was not checked" in output


def test_a_whole_answer_is_compared_with_its_receipt(
    run: Run, context: CliContext, served: Settlement, tmp_path: Path
) -> None:
    envelope, _, _ = stored(context)
    file = tmp_path / "answer.json"
    file.write_text(json.dumps({"id": "req_1", "receipt": envelope, "output": None}))
    output = run(receipt, "verify", file).output
    assert "leaves it out: output, cost, currency, usage.input_tokens" in output
    for change, message in (
        ({"output": "another text"}, "answer_differs: the output's hash is "),
        ({"id": "req_2"}, "answer_differs: id is 'req_2' in the answer"),
    ):
        file.write_text(json.dumps({"receipt": envelope} | change))
        assert message in run(receipt, "verify", file, status=1).output


def test_a_forged_receipt_is_refused_by_name(
    run: Run, context: CliContext, served: Settlement, tmp_path: Path
) -> None:
    envelope, _, _ = stored(context)
    envelope["receipt"]["total"] = "0"
    file = tmp_path / "receipt.json"
    for content, reason in (
        (json.dumps(envelope), "wrong_hash"),
        (json.dumps([]), "malformed"),
        (json.dumps({"receipt": None}), "malformed"),
        ("{", "not JSON"),
        ("[" * 100_000, "malformed: "),
    ):
        file.write_text(content)
        assert reason in run(receipt, "verify", file, status=1).output


def test_a_receipt_is_shown_with_its_adjustments_and_they_verify_too(
    run: Run, context: CliContext, served: Settlement, tmp_path: Path
) -> None:
    database = open_database(context.database_url)
    with transaction(database) as connection:
        token = review.claim(connection, "rev_req_1", "key_anna")
        review.resolve(
            connection,
            "rev_req_1",
            "key_anna",
            token,
            verdict="reject",
            reasons=["incorrect"],
            signer=served._signer,
        )
    database.dispose()
    file = tmp_path / "shown.json"
    file.write_text(run(receipt, "show", "req_1").output)
    output = run(receipt, "verify", file).output
    assert "adjusted: -0.000004, so 0.000002 USD" in output
    foreign = json.loads(file.read_text())
    foreign["adjustments"][0]["adjustment"]["amount"] = "-1"
    file.write_text(json.dumps(foreign))
    assert "wrong_hash" in run(receipt, "verify", file, status=1).output
    file.write_text(json.dumps(foreign | {"adjustments": 5}))
    output = run(receipt, "verify", file, status=1).output
    assert "malformed: adjustments must be a list" in output
    run(receipt, "show", "req_none", status=1)


def test_the_public_keys_are_printed_as_a_key_set(
    run: Run, context: CliContext, served: Settlement
) -> None:
    assert json.loads(run(receipt, "keys").output) == stored(context)[2]


def test_before_anything_was_published_the_local_key_vouches(run: Run, context: CliContext) -> None:
    assert "--keys" in run(receipt, "keys", status=1).output
    assert not (context.home / KEY_FILE).exists()
    signer = Signer.open(context.home / KEY_FILE)
    assert json.loads(run(receipt, "keys").output) == signer.key_set()


def test_honest_books_reconcile(run: Run, served: Settlement) -> None:
    assert run(reconcile).output.startswith("0 differences; compared 1 request")
    found = json.loads(run(reconcile, "--json").output)
    assert found["differences"] == []
    assert found["totals"]["tokens"] == 10


def test_a_difference_is_named_and_the_exit_status_says_so(
    run: Run, context: CliContext, served: Settlement
) -> None:
    database = open_database(context.database_url)
    with transaction(database) as connection:
        connection.execute(text("UPDATE engine_counters SET tokens = tokens + 1"))
    database.dispose()
    output = run(reconcile, status=1).output
    assert "all: event tokens = engine tokens less withheld: expected 11, found 10" in output
    found = json.loads(run(reconcile, "--json", status=1).output)
    assert found["differences"][0]["check"] == "event tokens = engine tokens less withheld"


def test_verifying_a_receipt_needs_no_database(tmp_path: Path) -> None:
    context = CliContext(tmp_path, f"sqlite:///{tmp_path / 'none.db'}")
    file = tmp_path / "receipt.json"
    file.write_text("{}")
    result = CliRunner().invoke(receipt, ["verify", str(file)], obj=context)
    assert "--keys" in result.output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["receipt.json"]


def test_no_command_of_billing_loads_torch() -> None:
    script = (
        "import sys, billing.cli, billing.settlement, billing.gate, billing.reconciliation;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_published_tariff_is_what_the_catalogue_serves(
    run: Run, context: CliContext, tmp_path: Path
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(TARIFF)
    run(tariff, "publish", file)
    database = open_database(context.database_url)
    with transaction(database) as connection:
        assert catalogue.version(connection, "mine@1").document.title == "Mine"
    database.dispose()
