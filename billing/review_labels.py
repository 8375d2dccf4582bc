"""What a verdict says of scores: which text was right, and how likely it was to be looked at.

An approved answer is right in all its units. A rejected one is wrong, and as nobody says in which
of its units, it counts as wrong in all: were they left out, units would only be known from answers
that were right. A corrected one is wrong as a whole, and right in the units that the correction
left as they were. Labels hold no content and outlive it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from difflib import SequenceMatcher

from sqlalchemy import Connection, select

from billing.review_items import ReviewItem, Verdict
from billing.rows import insert_once
from billing.tables import receipts
from metering import clock, queries
from metering.calibration import REQUEST, REVIEWERS, WHOLE
from metering.calibration_tables import confidence_labels
from metering.events import RequestSummary, UnitState
from metering.semantic import Segmenter

UNITS_MAX = 1000  # comparing more with a correction could cost seconds


def write(connection: Connection, item: ReviewItem) -> None:
    """Keep what a resolved item says of scores, where it is known how it came to be reviewed."""
    if item.inclusion_ppm is None or item.verdict is None:
        return
    summary = queries.summary(connection, item.request_id)
    request = queries.request(connection, item.tenant_id, item.request_id)
    if summary is None or request is None:
        return
    checksum = _checksum(connection, item.request_id)
    for index, kind, geo_mean, correct in _found(item, summary, request.output):
        insert_once(
            connection,
            confidence_labels,
            {
                "request_id": item.request_id,
                "unit_index": index,
                "model": summary.model,
                "model_checksum": checksum,
                "kind": kind,
                "geo_mean": geo_mean,
                "correct": correct,
                "inclusion_ppm": item.inclusion_ppm,
                "sampled": item.sampled,
                "judge": REVIEWERS,
                "labelled_at_us": clock.now_us(),
            },
        )


def _found(
    item: ReviewItem, summary: RequestSummary, output: str | None
) -> Iterator[tuple[int, str, str, bool]]:
    approved = item.verdict is Verdict.APPROVE
    if summary.confidence is not None:
        yield WHOLE, REQUEST, summary.confidence.geo_mean, approved
    right: frozenset[int] | None = None
    if item.verdict is Verdict.EDIT:
        right = unchanged(summary, output, item.edited_output)
    for unit in summary.units:
        if unit.state is UnitState.COMPLETE and unit.geo_mean is not None:
            correct = approved or (right is not None and unit.index in right)
            yield unit.index, unit.kind, unit.geo_mean, correct


def unchanged(
    summary: RequestSummary, output: str | None, edited: str | None
) -> frozenset[int] | None:
    """The units that a correction left as they were; null where that can't be told. Pure.

    Both texts are cut by the segmenter and compared unit by unit, in order; the space between units
    is nobody's.
    """
    if output is None or edited is None:
        return None
    raw = output.encode()
    before = [raw[unit.byte_start : unit.byte_end].strip() for unit in summary.units]
    segmenter = Segmenter()
    said = edited.encode()
    found = [*segmenter.feed(said), *segmenter.finish(stopped=True)]
    after = [said[unit.start : unit.end].strip() for unit in found]
    if max(len(before), len(after)) > UNITS_MAX:
        return None
    matching = SequenceMatcher(None, before, after, autojunk=False).get_matching_blocks()
    return frozenset(
        summary.units[index].index
        for block in matching
        for index in range(block.a, block.a + block.size)
    )


def _checksum(connection: Connection, request_id: str) -> str | None:
    document = connection.scalar(
        select(receipts.c.document).where(receipts.c.request_id == request_id)
    )
    checksum = None if document is None else json.loads(document)["model"]["checksum"]
    return None if checksum is None else str(checksum)
