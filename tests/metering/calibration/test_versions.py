"""Calibrations as they are kept: all of them, the newest of each model file in force."""

from __future__ import annotations

import msgspec
import pytest
from labels import CHECKSUM, MODEL
from metering_cases import add_tenant, admit
from sqlalchemy import Engine, insert

from metering import clock
from metering.calibration import (
    REQUEST,
    REVIEWERS,
    Curve,
    LabelCount,
    label_counts,
    store,
    versions,
)
from metering.calibration.reports import KindReport, Report
from metering.calibration_tables import confidence_labels
from metering.database import snapshot, transaction


def report(model: str, top: int, revision: int = 1) -> Report:
    curve = Curve((0, 10_000), (0, top))
    kind = KindReport(REQUEST, 100, 100, 60, 0.9, None, None, None, curve)
    return Report(model, CHECKSUM, 0.05, 0.95, 59, (kind,), None, revision)


def test_every_version_is_kept_whole_and_the_newest_of_a_file_is_in_force(
    database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [report("a", 9000), report("b", 8000), report("a", 7000, revision=2)]
    for at_us, each in enumerate(made):
        monkeypatch.setattr(clock, "now_us", lambda at_us=at_us: at_us)
        with transaction(database) as connection:
            assert store(connection, each.calibration(), msgspec.json.encode(each))
    with snapshot(database) as connection:
        found = versions(connection)
    assert [each.report for each in found] == made[::-1]
    assert [(each.id, each.in_force) for each in found] == [
        (made[2].id, True),
        (made[1].id, True),
        (made[0].id, False),
    ]


def test_labels_are_counted_by_kind_and_the_sampled_ones_by_answer(database: Engine) -> None:
    with transaction(database) as connection:
        add_tenant(connection)
    admit(database, "req_1", "req_2", "req_3")
    rows = [
        ("req_1", -1, REQUEST, True, CHECKSUM),
        ("req_1", 0, "sentence", True, CHECKSUM),
        ("req_1", 1, "sentence", True, CHECKSUM),
        ("req_2", 0, "sentence", False, CHECKSUM),
        ("req_3", -1, REQUEST, True, None),  # of no engine of ours: no file to calibrate
    ]
    names = ("request_id", "unit_index", "kind", "sampled", "model_checksum")
    same = {
        "model": MODEL,
        "geo_mean": "0.9000",
        "correct": True,
        "inclusion_ppm": 10_000,
        "labelled_at_us": 1,
        "judge": REVIEWERS,
    }
    with transaction(database) as connection:
        connection.execute(
            insert(confidence_labels), [dict(zip(names, row, strict=True)) | same for row in rows]
        )
    with snapshot(database) as connection:
        assert label_counts(connection) == [
            LabelCount(MODEL, CHECKSUM, REVIEWERS, REQUEST, 1, 1),
            LabelCount(MODEL, CHECKSUM, REVIEWERS, "sentence", 3, 1),
        ]
