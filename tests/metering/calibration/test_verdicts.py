"""Verdicts from outside: what a line may say, and that it is kept once, apart, and for nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from metering_cases import INFO, VOCAB_SIZE, add_tenant, admitted_request, block, step
from sqlalchemy import Engine, MetaData, select

from api import audit
from api.calibrate_cli import calibrate
from engine.records import EngineInfo, FinishReason, Work
from metering import bodies, requests
from metering.calibration import REQUEST, REVIEWERS, WHOLE, labels, verdicts
from metering.calibration_tables import confidence_labels
from metering.cli_context import CliContext
from metering.database import snapshot, transaction
from metering.errors import InvalidVerdicts
from metering.events import EndedBy, RequestStatus, RequestSummary
from metering.request_meter import RequestMeter
from metering.review_rule import ReviewRule

TESTS = "nightly/tests"
SAID = (" One", " sat", ".", " Two", " sat", ".", " Thr")


def finished(
    database: Engine,
    *request_ids: str,
    logprob: float = -0.1,
    engine: EngineInfo | None = INFO,
) -> list[RequestSummary]:
    """Requests that ended, of two sentences and a fragment each."""
    found = []
    with transaction(database) as connection:
        for name in request_ids:
            admitted = msgspec.structs.replace(admitted_request(name), engine=engine)
            requests.admit(connection, admitted)
            meter = RequestMeter(admitted, ReviewRule(0.0))
            said = block(0, *SAID, request_id=name, logprob=logprob)
            meter.fold(bodies.block_body(step(0), said, Work(), VOCAB_SIZE))
            end = meter.terminal(RequestStatus.COMPLETED, FinishReason.LENGTH, EndedBy.TENANT)
            found.append(meter.summary(end, 1))
            requests.finalise(connection, found[-1], meter.output)
    return found


def lines(*said: dict[str, Any]) -> list[bytes]:
    return [json.dumps(each).encode() for each in said]


def kept(database: Engine, said: list[bytes], judge: str = TESTS) -> int:
    with transaction(database) as connection:
        return verdicts.keep(connection, verdicts.read(connection, said, judge))


def test_verdicts_label_what_they_are_about_once_and_beside_the_reviewers(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection)
    one, _ = finished(database, "req_1", "req_2")
    said = lines(
        {"request_id": "req_1", "verdict": "approve", "output_sha256": one.output_sha256},
        {"request_id": "req_1", "verdict": "reject", "unit": 1, "group": "a question"},
        {"request_id": "req_2", "verdict": "reject", "group": "a question"},
    )
    assert kept(database, [*said, b"", said[0]]) == 3
    assert kept(database, said) == 0
    assert kept(database, lines({"request_id": "req_1", "verdict": "reject"}), "lint") == 1
    with snapshot(database) as connection:
        found = labels(connection, "tiny", INFO.checksum, TESTS)
        assert labels(connection, "tiny", INFO.checksum, REVIEWERS) == []
    assert [(each.request_id, each.unit_index, each.kind, each.correct) for each in found] == [
        ("req_1", WHOLE, REQUEST, True),
        ("req_1", 1, "sentence", False),
        ("req_2", WHOLE, REQUEST, False),
    ]
    assert {each.geo_mean for each in found} == {"0.9048"}
    assert all(each.sampled and each.weight == 1 for each in found)
    whole, unit, other = found
    assert whole.errs_with == "req_1"
    assert unit.errs_with == other.errs_with
    assert "question" not in str(unit.cluster)  # labels hold no content
    # The opposite of what a judge said is refused with all that came with it.
    with pytest.raises(InvalidVerdicts, match=f"{TESTS} said the opposite of unit 1 of req_1"):
        kept(
            database,
            lines(
                {"request_id": "req_2", "verdict": "approve", "unit": 0},
                {"request_id": "req_1", "verdict": "approve", "unit": 1},
            ),
        )
    with snapshot(database) as connection:
        assert labels(connection, "tiny", INFO.checksum, TESTS) == found


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"request_id": "req_1"}, "missing required field `verdict`"),
    ({"request_id": "req_1", "verdict": "edit"}, "Invalid enum value 'edit'"),
    ({"request_id": "req_1", "verdict": "approve", "score": 1}, "unknown field `score`"),
    ({"request_id": "req_1", "verdict": "approve", "unit": -1}, ">= 0"),
    ({"request_id": "req_1\0", "verdict": "approve"}, "matching regex"),
    ({"request_id": "req_9", "verdict": "approve"}, "no finished request req_9"),
    ({"request_id": "live", "verdict": "approve"}, "no finished request live"),
    ({"request_id": "req_1", "verdict": "approve", "unit": 2}, "no complete unit 2"),
    ({"request_id": "req_1", "verdict": "approve", "unit": 3}, "no complete unit 3"),
    ({"request_id": "req_1", "verdict": "approve", "output_sha256": "ab"}, "another text"),
    ({"request_id": "old", "verdict": "approve"}, "not known which model file"),
    ({"request_id": "req_1", "verdict": "reject"}, "the opposite of the same text"),
]


def test_lines_that_are_wrong_are_named_and_none_is_kept(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection)
        requests.admit(connection, admitted_request("live"))
    finished(database, "req_1")
    finished(database, "old", engine=None)
    good = {"request_id": "req_1", "verdict": "approve"}
    for said, fault in FAULTS:
        with pytest.raises(InvalidVerdicts, match=r"^line 2: ") as refused:
            kept(database, lines(good, said))
        assert fault in str(refused.value)
    with pytest.raises(InvalidVerdicts, match=r"^line 1: .*; line 3: .*; and 20 more$"):
        kept(database, [b"{", b"", b"nothing", *[b"[]"] * 28])
    for name in ("", REVIEWERS, "A", "a b", "a" * 101):
        with pytest.raises(InvalidVerdicts, match="a name has"):
            kept(database, lines(good), name)
    with snapshot(database) as connection:
        assert connection.execute(select(confidence_labels)).all() == []


def everything(database: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table."""
    stored = MetaData()
    stored.reflect(database)
    with snapshot(database) as connection:
        return {
            name: [tuple(row) for row in connection.execute(select(table))]
            for name, table in stored.tables.items()
        }


def test_a_file_of_verdicts_becomes_a_calibration_and_moves_nothing_else(
    sqlite_database: Engine, tmp_path: Path
) -> None:
    """Given answers of two scores, those of the higher all right and of the lower all wrong."""
    with transaction(sqlite_database) as connection:
        add_tenant(connection)
    good = [f"good_{number}" for number in range(70)]
    finished(sqlite_database, *good, logprob=-0.01)
    bad = [f"bad_{number}" for number in range(70)]
    finished(sqlite_database, *bad, logprob=-0.9)
    file = tmp_path / "verdicts.jsonl"
    said = [{"request_id": name, "verdict": "approve"} for name in good]
    said += [{"request_id": name, "verdict": "reject"} for name in bad]
    file.write_bytes(b"\n".join(lines(*said)))

    def record(connection: Any, **entry: Any) -> None:
        audit.write(connection, actor=audit.CLI, **entry)

    context = CliContext(tmp_path, str(sqlite_database.url), record=record)

    def run(*arguments: str, status: int = 0) -> str:
        done = CliRunner().invoke(calibrate, arguments, obj=context)
        assert done.exit_code == status, done.output
        return done.output

    before = everything(sqlite_database)
    assert "a dry run" in run("labels", str(file), "--judge", TESTS, "--dry-run")
    assert everything(sqlite_database) == before
    counts = json.loads(run("labels", str(file), "--judge", TESTS, "--json"))
    assert counts == {
        "judge": TESTS,
        "verdicts": 140,
        "right": 70,
        "requests": 140,
        "independent": 140,
        "added": 140,
    }
    assert "0 new" in run("labels", str(file), "--judge", TESTS)
    after = everything(sqlite_database)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"confidence_labels", "audit_log"}
    assert len(after["audit_log"]) == 1

    # Nobody's verdicts are taken for a reviewer's.
    assert f"--judge {TESTS}" in run("confidence", status=1)
    plot = tmp_path / "plot.svg"
    told = run("confidence", "--judge", TESTS, "--plot", str(plot))
    assert f"judged by {TESTS}" in told
    assert "at or above 0.4100: 0 of 70 wrong" in told
    assert f"labels by {TESTS}" in plot.read_text()
