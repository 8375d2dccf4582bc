"""After a crash: every request ends, and what was committed is billed once."""

from __future__ import annotations

import msgspec
from metering_cases import (
    INFO,
    Rig,
    add_tenant,
    admit,
    admitted_request,
    block,
    finish,
    folded,
    recorder_rig,
    step,
)
from sqlalchemy import Connection, Engine, delete, text

from engine.records import FinishReason
from metering import calibration, event_log, queries
from metering import requests as request_rows
from metering.calibration import REQUEST, Calibration, Curve
from metering.database import snapshot, transaction
from metering.events import EndedBy, RequestStatus
from metering.request_meter import RequestMeter
from metering.review_rule import ReviewRule
from metering.tables import usage_events


def crashed(database: Engine) -> None:
    """Leave three requests behind: with output, just admitted, and finished."""
    with recorder_rig(database) as rig:
        rig.track("req_1", "req_2", "req_3")
        rig.recorder.on_steps(
            [
                step(0, block(0, "One. ", "Two"), block(0, "x", request_id="req_3")),
                step(1, block(1, " or"), finishes=[finish("req_3")]),
            ]
        )
        rig.sink.wait_for("req_3")


def recovered(database: Engine) -> Rig:
    with recorder_rig(database, with_tenant=False) as rig:
        assert rig.recorder.recover() == 2
        assert rig.recorder.recover() == 0
    return rig


def test_every_orphan_ends_failed_by_the_operator(database: Engine) -> None:
    crashed(database)
    rig = recovered(database)
    assert sorted(rig.sink.summaries) == ["req_1", "req_2"]
    for summary in rig.sink.summaries.values():
        assert (summary.status, summary.ended_by) == (RequestStatus.FAILED, EndedBy.OPERATOR)
        assert summary.finish_reason == "error"


def test_an_orphan_is_settled_for_what_was_committed(database: Engine) -> None:
    crashed(database)
    rig = recovered(database)
    summary = rig.sink.summaries["req_1"]
    assert (summary.output_tokens, summary.blocks, len(summary.units)) == (3, 2, 2)
    with snapshot(database) as connection:
        row = queries.request(connection, "acme", "req_1")
        events = event_log.of_request(connection, "req_1")
    assert row is not None
    assert row.output == "One. Two or"
    assert folded(admitted_request(), events, summary.ended_at_us) == summary


def test_the_summary_from_the_log_is_that_of_the_running_meter(database: Engine) -> None:
    """At every block: what a crash would find is what the gate was asked about."""
    with recorder_rig(database) as rig:
        rig.track("req_1")
        words = [
            "# Fibo",
            "nacci\n\n```",
            "py\ndef f",
            "(n):\n",
            "  return",
            " n\n",
            "```\nDone",
            ".",
        ]
        for index, word in enumerate(words):
            rig.recorder.on_steps([step(index, block(index, word, accepted=index % 2, drafted=1))])
            asked = rig.gate.seen[-1]
            meter = RequestMeter(admitted_request(), ReviewRule(0.0))
            with snapshot(database) as connection:
                for body in event_log.of_request(connection, "req_1"):
                    meter.fold(body)
            end = meter.terminal(asked.status, FinishReason.BUDGET, asked.ended_by)
            assert meter.summary(end, asked.ended_at_us) == asked


def test_an_orphan_of_another_model_is_not_scored_by_the_calibration_of_the_one_that_runs(
    database: Engine,
) -> None:
    """Given a gateway that crashed on one model file and was restarted on another, both judged."""
    before, after = INFO, msgspec.structs.replace(INFO, checksum="sha256:01")
    with transaction(database) as connection:
        add_tenant(connection)
        for info, rate in ((before, 1000), (after, 9000)):
            found = Calibration(f"cal_{rate}", info.model, info.checksum, {REQUEST: flat(rate)})
            report = {"kinds": [{"kind": REQUEST, "curve": flat(rate)}], "review_below": None}
            assert calibration.store(connection, found, msgspec.json.encode(report))
        admitted = msgspec.structs.replace(
            admitted_request(), engine=before, calibration="cal_1000"
        )
        request_rows.admit(connection, admitted)
        request_rows.admit(connection, admitted_request("req_of_old"))
    with recorder_rig(database, with_tenant=False) as rig:
        rig.recorder.track(admitted)
        rig.recorder.on_steps([step(0, block(0, "One"))])
    with recorder_rig(database, with_tenant=False) as rig:
        rig.recorder.calibration = found
        assert rig.recorder.recover() == 2
    summary = rig.sink.summaries["req_1"]
    assert summary.calibration == "cal_1000"
    assert summary.confidence is not None
    assert summary.confidence.calibrated == "0.1000"
    assert rig.sink.summaries["req_of_old"].calibration is None


def test_an_orphan_keeps_the_calibration_that_it_was_admitted_with(database: Engine) -> None:
    """Given two of one model file: the second came in force while the request ran."""
    with transaction(database) as connection:
        add_tenant(connection)
        fitted = [judged(connection, rate) for rate in (6000, 9900)]
        first = msgspec.structs.replace(admitted_request(), engine=INFO, calibration=fitted[0].id)
        unjudged = msgspec.structs.replace(admitted_request("req_2"), engine=INFO)
        for each in (first, unjudged):
            request_rows.admit(connection, each)
    with recorder_rig(database, with_tenant=False) as rig:
        rig.recorder.calibration = fitted[1]  # between admission and here
        rig.recorder.track(first, unjudged)
        rig.recorder.on_steps([step(0, block(0, "One"), block(0, "Two", request_id="req_2"))])
        asked = {each.request_id: each for each in rig.gate.seen}
    with recorder_rig(database, with_tenant=False) as rig:
        rig.recorder.calibration = fitted[1]
        assert rig.recorder.recover() == 2
    for name, version, calibrated in (("req_1", "cal_6000", "0.6000"), ("req_2", None, None)):
        for summary in (asked[name], rig.sink.summaries[name]):
            assert summary.confidence is not None
            assert (summary.calibration, summary.confidence.calibrated) == (version, calibrated)
        assert rig.sink.summaries[name].units == asked[name].units


def judged(connection: Connection, rate: int) -> Calibration:
    """Put a calibration of the rig's model file in force."""
    found = Calibration(f"cal_{rate}", INFO.model, INFO.checksum, {REQUEST: flat(rate)})
    report = {"kinds": [{"kind": REQUEST, "curve": flat(rate)}], "review_below": None}
    assert calibration.store(connection, found, msgspec.json.encode(report))
    return found


def flat(rate: int) -> Curve:
    return Curve((0,), (rate,))


def test_a_recovery_that_cannot_be_settled_now_is_settled_later(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection)
    admit(database, "req_1")
    with recorder_rig(database, with_tenant=False) as rig:
        rig.settlements.failures["req_1"] = 1
        assert rig.recorder.recover() == 1
        assert rig.sink.wait_for("req_1").status is RequestStatus.FAILED


def test_requests_of_this_process_are_not_orphans(database: Engine) -> None:
    with recorder_rig(database) as rig:
        rig.track("req_1")
        assert rig.recorder.recover() == 0


def test_events_that_do_not_fold_do_not_keep_a_request_open(sqlite_database: Engine) -> None:
    crashed(sqlite_database)
    with transaction(sqlite_database) as connection:
        triggers = text("SELECT name FROM sqlite_master WHERE type = 'trigger'")
        for name in connection.scalars(triggers).all():
            connection.exec_driver_sql(f"DROP TRIGGER {name}")
        connection.execute(delete(usage_events).where(usage_events.c.id == "req_1/block/0"))
    rig = recovered(sqlite_database)
    assert rig.sink.summaries["req_1"].status is RequestStatus.FAILED
    assert rig.sink.summaries["req_1"].output_tokens == 0
