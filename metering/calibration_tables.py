"""Tables of what was found of scored text, and by whom, and of the calibrations fitted to it."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
)

from metering.tables import Id, metadata, requests

# No content: a score, and whether the text that had it was right. It outlives the text. Judges may
# differ, each about another thing: what a test calls right is not what a reviewer does.
confidence_labels = Table(
    "confidence_labels",
    metadata,
    Column("request_id", Id, ForeignKey(requests.c.id), primary_key=True),
    Column("unit_index", Integer, primary_key=True),  # -1: the whole answer
    Column("judge", String(100), primary_key=True),  # "reviewers", or what judged outside
    Column("model", String(200), nullable=False),
    Column("model_checksum", String(100)),  # null: no engine of ours made it
    Column("kind", String(32), nullable=False),  # of the unit; "request" for the whole answer
    Column("geo_mean", String(8), nullable=False),
    Column("correct", Boolean, nullable=False),
    Column("inclusion_ppm", Integer, nullable=False),  # how likely it was to be reviewed
    Column("sampled", Boolean, nullable=False),  # by the audit, whatever its score
    Column("labelled_at_us", BigInteger, nullable=False),
    Column("cluster", String(64)),  # hashed: what errs together; null: the answers of one order
    CheckConstraint("inclusion_ppm BETWEEN 1 AND 1000000", name="inclusion"),
)
Index("ix_confidence_labels_model", confidence_labels.c.model, confidence_labels.c.kind)

# Never changed; the newest of a model is in force.
calibrations = Table(
    "calibrations",
    metadata,
    Column("id", String(64), primary_key=True),  # derived from the document
    Column("model", String(200), nullable=False),
    Column("model_checksum", String(100), nullable=False),
    Column("document", Text, nullable=False),  # JSON: curves, guarantees and figures
    Column("created_at_us", BigInteger, nullable=False),
)
Index("ix_calibrations_model_created", calibrations.c.model, calibrations.c.created_at_us)
