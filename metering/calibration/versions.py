"""Calibrations in the database: every version that was ever in force, the newest one in force."""

from __future__ import annotations

import msgspec
from sqlalchemy import Connection, func, insert, select

from metering import clock
from metering.calibration.curves import Calibration, Curve
from metering.calibration.reports import Report
from metering.calibration_tables import calibrations


class _KindCurve(msgspec.Struct):
    """What applying a calibration reads of a kind's report."""

    kind: str
    curve: Curve | None


class _Document(msgspec.Struct):
    """What applying a calibration reads of a report."""

    kinds: list[_KindCurve]
    review_below: str | None


class Version(msgspec.Struct, frozen=True):
    """A calibration as it was fitted, and since when it has been there."""

    id: str
    report: Report
    created_at_us: int
    in_force: bool  # it is the newest of its model file


def revision(connection: Connection, model: str, model_checksum: str) -> int:
    """The number of a model file's next calibration, from 1."""
    count = connection.scalar(
        select(func.count())
        .select_from(calibrations)
        .where(calibrations.c.model == model, calibrations.c.model_checksum == model_checksum)
    )
    return int(count or 0) + 1


def store(connection: Connection, calibration: Calibration, document: bytes) -> bool:
    """Put a calibration in force, with the report that it is read from.

    False, and nothing is written, if the one in force says the same.
    """
    current = in_force(connection, calibration.model, calibration.model_checksum)
    if current is not None and (current.curves, current.review_below) == (
        calibration.curves,
        calibration.review_below,
    ):
        return False
    connection.execute(
        insert(calibrations).values(
            id=calibration.id,
            model=calibration.model,
            model_checksum=calibration.model_checksum,
            document=document.decode(),
            created_at_us=clock.now_us(),
        )
    )
    return True


def in_force(connection: Connection, model: str, model_checksum: str) -> Calibration | None:
    """The newest calibration of exactly this model file; null: scores of it are uncalibrated."""
    row = (
        connection.execute(
            select(calibrations)
            .where(calibrations.c.model == model, calibrations.c.model_checksum == model_checksum)
            .order_by(calibrations.c.created_at_us.desc(), calibrations.c.id.desc())
            .limit(1)
        )
        .mappings()
        .one_or_none()
    )
    return None if row is None else _from_row(**row)


def calibration(connection: Connection, calibration_id: str) -> Calibration | None:
    """One version, in force or not any more; null for one that never was."""
    row = (
        connection.execute(select(calibrations).where(calibrations.c.id == calibration_id))
        .mappings()
        .one_or_none()
    )
    return None if row is None else _from_row(**row)


def versions(connection: Connection) -> list[Version]:
    """Every calibration there ever was, of all models, the newest first."""
    rows = connection.execute(
        select(calibrations).order_by(calibrations.c.created_at_us.desc(), calibrations.c.id.desc())
    )
    found: list[Version] = []
    superseded: set[tuple[str, str]] = set()
    for row in rows:
        report = msgspec.json.decode(row.document, type=Report)
        file = (row.model, row.model_checksum)
        found.append(Version(row.id, report, row.created_at_us, file not in superseded))
        superseded.add(file)
    return found


def _from_row(
    *, id: str, model: str, model_checksum: str, document: str, created_at_us: int
) -> Calibration:
    read = msgspec.json.decode(document, type=_Document)
    curves = {each.kind: each.curve for each in read.kinds if each.curve is not None}
    return Calibration(id, model, model_checksum, curves, read.review_below)
