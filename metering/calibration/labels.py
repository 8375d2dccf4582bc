"""Labels: scores of text that somebody judged, and how likely each was to be judged at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, case, func, select

from metering.calibration.curves import to_parts
from metering.calibration_tables import confidence_labels

WHOLE = -1  # the index of the whole answer, among the indexes of its units
REVIEWERS = "reviewers"  # the judge whose verdicts come from the review queue


@dataclass(frozen=True, slots=True)
class Label:
    """A score and whether its text was right.

    It stands for `1 / inclusion` such texts. `sampled` ones were drawn whatever their score, so
    that they alone say how often text is wrong.
    """

    request_id: str
    unit_index: int
    model: str
    model_checksum: str | None
    kind: str
    geo_mean: str
    correct: bool
    inclusion_ppm: int
    sampled: bool
    judge: str = REVIEWERS
    cluster: str | None = None

    @property
    def errs_with(self) -> str:
        """What is the same for labels that err together: an order's answers, or its own group."""
        return self.cluster or self.request_id.partition(".")[0]

    @property
    def score(self) -> int:
        """The score in ten thousandths."""
        return to_parts(self.geo_mean)

    @property
    def weight(self) -> float:
        """How many texts it stands for."""
        return 1_000_000 / self.inclusion_ppm


def labels(connection: Connection, model: str, model_checksum: str, judge: str) -> list[Label]:
    """One judge's labels of one model file, in the order of request and unit."""
    names = [column for column in confidence_labels.columns if column.name != "labelled_at_us"]
    rows = connection.execute(
        select(*names)
        .where(
            confidence_labels.c.model == model,
            confidence_labels.c.model_checksum == model_checksum,
            confidence_labels.c.judge == judge,
        )
        .order_by(confidence_labels.c.request_id, confidence_labels.c.unit_index)
    ).mappings()
    return [Label(**row) for row in rows]


def labelled_models(connection: Connection) -> list[tuple[str, str, str]]:
    """The models, their files' checksums, and the judges whose labels exist of them."""
    stored = confidence_labels.c
    file = (stored.model, stored.model_checksum, stored.judge)
    rows = connection.execute(
        select(*file).where(stored.model_checksum.is_not(None)).distinct().order_by(*file)
    )
    return [(model, checksum, judge) for model, checksum, judge in rows]


@dataclass(frozen=True, slots=True)
class LabelCount:
    """How many texts of a kind a judge saw, and of how many requests whatever their score."""

    model: str
    model_checksum: str
    judge: str
    kind: str
    labels: int
    sampled: int  # requests: units of one answer err together


def label_counts(connection: Connection) -> list[LabelCount]:
    """What there is to calibrate by, for each model file, judge and kind."""
    stored = confidence_labels.c
    file = (stored.model, stored.model_checksum, stored.judge, stored.kind)
    sampled = case((stored.sampled.is_(True), stored.request_id))
    rows = connection.execute(
        select(*file, func.count(), func.count(sampled.distinct()))
        .where(stored.model_checksum.is_not(None))
        .group_by(*file)
        .order_by(*file)
    )
    return [LabelCount(*row) for row in rows]


def independent(found: Iterable[Label]) -> list[Label]:
    """One of the labels that err together, drawn by hashing."""
    chosen: dict[str, Label] = {}
    for label in found:
        held = chosen.get(label.errs_with)
        if held is None or _draw(label) < _draw(held):
            chosen[label.errs_with] = label
    return list(chosen.values())


def _draw(label: Label) -> bytes:
    return hashlib.sha256(f"{label.request_id}:{label.unit_index}".encode()).digest()
