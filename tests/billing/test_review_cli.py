"""From verdicts to a calibration in force, and reviews on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from billing_cases import ENGINE, unit
from click.testing import CliRunner, Result
from review_desk import FEE_NANO, ReviewDesk
from sqlalchemy import Engine

from billing import review_caps
from billing.money import format_nano
from billing.review_cli import review
from metering import calibration
from metering.cli_context import CliContext
from metering.confidence_cli import confidence
from metering.database import snapshot


@pytest.fixture
def desk(sqlite_database: Engine, tmp_path: Path) -> ReviewDesk:
    made = ReviewDesk(sqlite_database, tmp_path)
    made.tenant()
    return made


@pytest.fixture
def recorded() -> list[dict[str, Any]]:
    return []


def run(desk: ReviewDesk, recorded: list[dict[str, Any]], command: Any, *arguments: str) -> Result:
    context = CliContext(
        Path(),
        desk.database.url.render_as_string(hide_password=False),
        record=lambda _connection, **entry: recorded.append(entry),
    )
    return CliRunner().invoke(command, arguments, obj=context)


def test_reviewers_are_paid_and_costs_are_capped(
    desk: ReviewDesk, recorded: list[dict[str, Any]]
) -> None:
    assert "no reviewer has earned" in run(desk, recorded, review, "accounts").output
    desk.judge(desk.answer(), "key_anna", "approve")
    desk.answer()
    status = run(desk, recorded, review, "status").output
    assert "waiting        1, 0 of them overdue" in status
    assert f"{format_nano(FEE_NANO)} due" in run(desk, recorded, review, "accounts").output
    for _ in range(2):
        paid = run(desk, recorded, review, "pay", "key_anna", "bank 1", "--amount", "0.01")
        assert "0.01 USD booked as paid" in paid.output
    assert "0.000000001 due" in run(desk, recorded, review, "accounts").output
    assert "5 USD a month" in run(desk, recorded, review, "cap", "ten_1", "--amount", "5").output
    with snapshot(desk.database) as connection:
        assert review_caps.cap(connection, "ten_1") == 5 * 10**9
    assert "no cap" in run(desk, recorded, review, "cap", "ten_1").output
    actions = [entry["action"] for entry in recorded]
    assert actions == ["review.paid_out"] + ["review_cap.changed"] * 2


def test_verdicts_on_sampled_answers_become_a_calibration_in_force(
    desk: ReviewDesk, recorded: list[dict[str, Any]], tmp_path: Path
) -> None:
    nothing = run(desk, recorded, confidence)
    assert nothing.exit_code == 1
    assert "no answer has been reviewed yet" in nothing.output
    for _ in range(59):
        request_id = desk.answer(unit(4), reason="audit", audit_ppm=10_000)
        desk.judge(request_id, "key_anna", "approve")
    plot = tmp_path / "plot.svg"
    dry = run(desk, recorded, confidence, "--dry-run", "--plot", str(plot))
    assert dry.exit_code == 0, dry.output
    assert "was not put in force" in dry.output
    assert "0 of 59 wrong, at most 0.0495 at confidence 0.95" in dry.output
    assert plot.read_text().startswith("<svg")
    nowhere = tmp_path / "missing" / "plot.svg"
    assert run(desk, recorded, confidence, "--plot", str(nowhere)).exit_code == 1
    assert recorded == [], "whoever asks for a plot gets both or neither"
    absurd = run(desk, recorded, confidence, "--error", "1e-17")
    assert absurd.exit_code == 1
    assert "uncalibrated" in absurd.output
    stored = run(desk, recorded, confidence, "--guard", "--json")
    report = json.loads(stored.output)
    assert [kind["kind"] for kind in report["kinds"]] == ["request", "sentence"]
    again = run(desk, recorded, confidence, "--guard")
    assert "in force says the same already" in again.output
    assert [entry["action"] for entry in recorded] == ["calibration.stored"]
    with snapshot(desk.database) as connection:
        found = calibration.in_force(connection, "tiny", ENGINE.checksum)
        assert found is not None
        assert calibration.calibration(connection, found.id) == found
        assert calibration.in_force(connection, "tiny", "sha256:another") is None
    assert found.review_below == report["review_below"]
    assert found.calibrated("sentence", "0.9900") == "0.9836"  # 1 - 1/61
    assert found.calibrated("heading", "0.9900") is None
    impossible = run(desk, recorded, confidence, "--error", "0.01")
    assert impossible.exit_code == 1
    assert "59 of the 299 sampled labels" in impossible.output
    assert "uncalibrated: nothing was put in force" in impossible.output
