"""A new signing key: what the old one signed stays verifiable, and it signs nothing more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from billing_cases import summary
from billing_world import FAR_US, add_request, add_tenant, ended
from click.testing import CliRunner
from sqlalchemy import Engine

from api.errors import NotFound
from api.inference import audits
from api.receipt_cli import receipt
from api.tenure import Tenure
from billing import receipts
from billing.errors import CannotAudit
from billing.gate import HoldGate
from billing.receipts_cli import KEY_FILE
from billing.settlement import Settlement
from billing.signing import Signer, public_keys
from billing.verification import verify
from metering.cli_context import CliContext
from metering.database import transaction


@pytest.fixture
def audited() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def context(database: Engine, tmp_path: Path, audited: list[dict[str, Any]]) -> CliContext:
    with transaction(database) as connection:
        add_tenant(connection)
    url = database.url.render_as_string(hide_password=False)
    return CliContext(tmp_path, url, record=lambda _connection, **entry: audited.append(entry))


def issue(database: Engine, context: CliContext, request_id: str) -> str:
    """Settle a request as a gateway that starts now would; who signed its receipt."""
    signer = Signer.open(context.home / KEY_FILE)
    with transaction(database) as connection:
        signer.register(connection)
        request = add_request(connection, request_id)
        HoldGate().admit(connection, request, expires_at_us=FAR_US)
        ended(connection, Settlement(signer), summary(request_id=request_id))
    return signer.kid


def test_receipts_of_a_replaced_key_verify_and_new_ones_have_another(
    database: Engine, context: CliContext, audited: list[dict[str, Any]]
) -> None:
    old = issue(database, context, "req_1")
    old_private = (context.home / KEY_FILE).read_bytes()
    done = CliRunner().invoke(receipt, ["rotate-key"], obj=context)
    assert done.exit_code == 0, done.output
    new = issue(database, context, "req_2")
    assert done.output == f"{new} signs from now on; {old} is retired\n"
    assert audited == [{"action": "receipt_key.rotated", "subject": new, "retired": old}]
    with transaction(database) as connection:
        keys = public_keys(connection)
        assert [("retired_at_us" in key) for key in keys["keys"]] == [True, False]
        for request_id, kid in (("req_1", old), ("req_2", new)):
            envelope = receipts.receipt(connection, None, request_id)
            assert envelope is not None
            assert verify(json.loads(json.dumps(envelope)), keys).kid == kid
    key_files = [each for each in (context.home / KEY_FILE).parent.iterdir() if each.is_file()]
    assert old_private not in [each.read_bytes() for each in key_files]
    assert (context.home / KEY_FILE).stat().st_mode & 0o077 == 0


def test_the_key_of_a_serving_gateway_is_not_replaced(
    database: Engine, context: CliContext
) -> None:
    kid = issue(database, context, "req_1")
    serving = Tenure(database)
    serving.take()
    refused = CliRunner().invoke(receipt, ["rotate-key"], obj=context)
    serving.release()
    assert "another gateway serves this database" in str(refused.exception)
    assert Signer.open(context.home / KEY_FILE).kid == kid


def test_a_receipt_that_cannot_be_audited_is_told_of_and_the_others_are_audited(
    context: CliContext, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{}")
    named = [str(bad), "req_none", "req_nobody"]
    done = CliRunner().invoke(receipt, ["audit", *named, "--json"], obj=context)
    assert done.exit_code == 1
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["request_id"], each["code"]) for each in said] == [
        (str(bad), "invalid_receipt"),
        ("req_none", "not_found"),
        ("req_nobody", "not_found"),
    ]
    assert said[1]["reason"] == "no generation req_none"
    assert [line.split(": ")[0] for line in done.stderr.splitlines()] == named


@pytest.mark.parametrize(
    ("code", "refusal"),
    [("not_found", NotFound), ("cannot_audit", CannotAudit), ("model_not_found", CannotAudit)],
)
def test_the_desk_refuses_for_the_reason_that_the_command_gives(
    code: str, refusal: type[Exception]
) -> None:
    said = json.dumps({"request_id": "req_1", "code": code, "reason": "gone"}).encode()
    with pytest.raises(refusal):
        audits._refuse(said + b"\n")
    audits._refuse(b"")
