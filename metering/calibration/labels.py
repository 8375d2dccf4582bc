"""Labels: scores of text that somebody judged, and how likely each was to be judged at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, case, func, select

from metering.calibration.curves import to_parts
from metering.calibration_tables import confidence_labels

WHOLE = -1  # the index of the whole answer, among the indexes of its units


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

    @property
    def score(self) -> int:
        """The score in ten thousandths."""
        return to_parts(self.geo_mean)

    @property
    def weight(self) -> float:
        """How many texts it stands for."""
        return 1_000_000 / self.inclusion_ppm


def labels(connection: Connection, model: str, model_checksum: str) -> list[Label]:
    """The labels of one model file, in the order of request and unit."""
    names = [column for column in confidence_labels.columns if column.name != "labelled_at_us"]
    rows = connection.execute(
        select(*names)
        .where(
            confidence_labels.c.model == model,
            confidence_labels.c.model_checksum == model_checksum,
        )
        .order_by(confidence_labels.c.request_id, confidence_labels.c.unit_index)
    ).mappings()
    return [Label(**row) for row in rows]


def labelled_models(connection: Connection) -> list[tuple[str, str]]:
    """The models, and their files' checksums, that labels exist of."""
    stored = confidence_labels.c
    rows = connection.execute(
        select(stored.model, stored.model_checksum)
        .where(stored.model_checksum.is_not(None))
        .distinct()
        .order_by(stored.model, stored.model_checksum)
    )
    return [(model, checksum) for model, checksum in rows]


@dataclass(frozen=True, slots=True)
class LabelCount:
    """How many texts of a kind have been judged, and how many requests of the audit's sample."""

    model: str
    model_checksum: str
    kind: str
    labels: int
    sampled: int  # requests: units of one answer err together


def label_counts(connection: Connection) -> list[LabelCount]:
    """What there is to calibrate by, for each model file and kind."""
    stored = confidence_labels.c
    file = (stored.model, stored.model_checksum, stored.kind)
    sampled = case((stored.sampled.is_(True), stored.request_id))
    rows = connection.execute(
        select(*file, func.count(), func.count(sampled.distinct()))
        .where(stored.model_checksum.is_not(None))
        .group_by(*file)
        .order_by(*file)
    )
    return [LabelCount(*row) for row in rows]


def independent(found: Iterable[Label]) -> list[Label]:
    """One of each request's labels, drawn by hashing: units of one answer err together."""
    chosen: dict[str, Label] = {}
    for label in found:
        held = chosen.get(label.request_id)
        if held is None or _draw(label) < _draw(held):
            chosen[label.request_id] = label
    return list(chosen.values())


def _draw(label: Label) -> bytes:
    return hashlib.sha256(f"{label.request_id}:{label.unit_index}".encode()).digest()
