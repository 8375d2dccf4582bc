"""Verdicts from outside: what a test run or an evaluation found of stored answers, as labels.

Each is about one text, an answer or a unit of it, and says nothing of any other. It moves no money
and no review item, and is kept with its judge's name, so that it never counts as a reviewer's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from sqlalchemy import Connection, select
from sqlalchemy.dialects import postgresql, sqlite

from engine.records import EngineInfo
from metering import clock, queries
from metering.calibration.curves import REQUEST
from metering.calibration.labels import REVIEWERS, WHOLE, Label
from metering.calibration_tables import confidence_labels
from metering.errors import InvalidVerdicts
from metering.events import RequestSummary, UnitState
from metering.tables import requests

JUDGE_NAME = re.compile(r"[a-z0-9][a-z0-9._/-]{0,99}")
FAULTS_SHOWN = 10
ALL_PPM = 1_000_000
_BATCH = 500  # rows in a statement: SQLite takes so many parameters and no more


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line: whether a stored answer, or the unit of it that has this index, is right."""

    request_id: Annotated[str, Meta(pattern=r"^[\w.-]{1,64}(?!\n)$")]
    verdict: Literal["approve", "reject"]
    unit: Annotated[int, Meta(ge=0)] | None = None  # null: the whole answer
    group: Annotated[str, Meta(min_length=1)] | None = None  # the question, if asked several times
    output_sha256: str | None = None  # as on the receipt: of the text that was judged


def read(connection: Connection, lines: Iterable[bytes], judge: str) -> list[Label]:
    """What JSON Lines say of texts in this database. Changes nothing.

    All is taken as drawn whatever its score. Raises InvalidVerdicts, which names the lines.
    """
    if not JUDGE_NAME.fullmatch(judge) or judge == REVIEWERS:
        raise InvalidVerdicts(
            f"judge {judge!r}: a name has 1 to 100 of a-z, 0-9 and . _ / -, and is not {REVIEWERS}"
        )
    found: dict[tuple[str, int], Label] = {}
    faults: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            label = _label(connection, msgspec.json.decode(line, type=Verdict), judge)
            held = found.setdefault((label.request_id, label.unit_index), label)
            if held.correct is not label.correct:
                raise InvalidVerdicts("another line says the opposite of the same text")
        except (msgspec.DecodeError, RecursionError, InvalidVerdicts) as fault:
            faults.append(f"line {number}: {fault}")
    if faults:
        more = f"; and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
        raise InvalidVerdicts("; ".join(faults[:FAULTS_SHOWN]) + more)
    return list(found.values())


def keep(connection: Connection, labels: list[Label]) -> int:
    """Store labels within the caller's transaction, and say how many are new.

    Raises InvalidVerdicts where the same judge said the opposite before; what was inserted by then
    is for the caller to roll back.
    """
    table = confidence_labels
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    labelled_at_us = clock.now_us()
    added = 0
    for first in range(0, len(labels), _BATCH):
        batch = labels[first : first + _BATCH]
        rows = [
            {name: getattr(label, name) for name in Label.__slots__}
            | {"labelled_at_us": labelled_at_us}
            for label in batch
        ]
        statement = insert(table).values(rows).on_conflict_do_nothing()
        added += len(connection.execute(statement.returning(table.c.unit_index)).all())
        _check_equal(connection, batch)
    return added


def _check_equal(connection: Connection, labels: list[Label]) -> None:
    table = confidence_labels.c
    rows = connection.execute(
        select(table.request_id, table.unit_index, table.correct).where(
            table.judge == labels[0].judge,
            table.request_id.in_({label.request_id for label in labels}),
        )
    )
    stored = {(row.request_id, row.unit_index): row.correct for row in rows}
    for label in labels:
        if stored[label.request_id, label.unit_index] is not label.correct:
            raise InvalidVerdicts(
                f"{label.judge} said the opposite of {_place(label)} before; a verdict stays"
            )


def _label(connection: Connection, verdict: Verdict, judge: str) -> Label:
    summary = queries.summary(connection, verdict.request_id)
    if summary is None:
        raise InvalidVerdicts(f"there is no finished request {verdict.request_id}")
    if verdict.output_sha256 not in {None, summary.output_sha256}:
        raise InvalidVerdicts(f"{verdict.request_id} gave another text than the one judged")
    kind, geo_mean = _scored(summary, verdict.unit)
    return Label(
        request_id=verdict.request_id,
        unit_index=WHOLE if verdict.unit is None else verdict.unit,
        model=summary.model,
        model_checksum=_checksum(connection, verdict.request_id),
        kind=kind,
        geo_mean=geo_mean,
        correct=verdict.verdict == "approve",
        inclusion_ppm=ALL_PPM,
        sampled=True,
        judge=judge,
        cluster=_hashed(judge, verdict.group),
    )


def _scored(summary: RequestSummary, unit: int | None) -> tuple[str, str]:
    """The kind and the raw score of what was judged."""
    if unit is None:
        if summary.confidence is None:
            raise InvalidVerdicts(f"{summary.request_id} has no score")
        return REQUEST, summary.confidence.geo_mean
    found = summary.units[unit] if unit < len(summary.units) else None
    if found is None or found.state is not UnitState.COMPLETE:
        raise InvalidVerdicts(f"{summary.request_id} has no complete unit {unit}")
    if found.geo_mean is None:
        raise InvalidVerdicts(f"unit {unit} of {summary.request_id} has no score")
    return found.kind, found.geo_mean


def _checksum(connection: Connection, request_id: str) -> str:
    engine = connection.scalar(select(requests.c.engine).where(requests.c.id == request_id))
    if engine is None:
        raise InvalidVerdicts(f"of {request_id} it is not known which model file answered")
    return msgspec.json.decode(engine, type=EngineInfo).checksum


def _hashed(judge: str, group: str | None) -> str | None:
    """A group's name may tell content, which labels hold none of."""
    return None if group is None else hashlib.sha256(f"{judge}:{group}".encode()).hexdigest()


def _place(label: Label) -> str:
    of = "" if label.unit_index == WHOLE else f"unit {label.unit_index} of "
    return f"{of}{label.request_id}"
