"""What a reviewer sees of an item, and what becomes of its correction.

Reviewers see prompt and output with what points at a person hidden, unless the tenant agreed to
their seeing all of it; a correction is written around
the marks, which become again what they hide before it is kept. Both sides are made anew from the
stored text, so that no list of what was hidden is ever kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select

from billing.redaction import Redacted, Redaction
from billing.review_items import ReviewItem
from metering import queries
from metering.tables import tenants


@dataclass(frozen=True, slots=True)
class ReviewTexts:
    """The texts of one item, as its tenant lets them be seen; null once they are erased."""

    prompt: Any  # as it was sent: an object that holds a prompt, or messages
    output: Redacted | None
    edited_output: str | None
    redaction: Redaction


def texts(connection: Connection, item: ReviewItem) -> ReviewTexts:
    """What a reviewer may see of an item."""
    hides = connection.scalar(
        select(tenants.c.review_redaction).where(tenants.c.id == item.tenant_id)
    )
    return _texts(connection, item, hides=hides is not False)


def corrected(connection: Connection, item: ReviewItem, edited: str | None) -> str | None:
    """A reviewer's correction with what its marks hide put back.

    Marks are known whatever the tenant says by now: the reviewer may have seen them before.
    """
    if edited is None:
        return None
    return _texts(connection, item, hides=True).redaction.restore(edited)


def _texts(connection: Connection, item: ReviewItem, *, hides: bool) -> ReviewTexts:
    request = queries.request(connection, item.tenant_id, item.request_id)
    prompt = request.prompt if request else None
    output = request.output if request else None
    # Marks depend on these two alone: a correction is read with those that it was written with.
    redaction = Redaction(*_strings(prompt), *_strings(output), hides=hides)
    shown_prompt = _redacted(redaction, prompt)
    shown_output = None if output is None else redaction.redact(output)
    edited = item.edited_output
    return ReviewTexts(
        shown_prompt,
        shown_output,
        None if edited is None else redaction.redact(edited).text,
        redaction,
    )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def _redacted(redaction: Redaction, value: Any) -> Any:
    if isinstance(value, str):
        return redaction.redact(value).text
    if isinstance(value, list):
        return [_redacted(redaction, each) for each in value]
    if isinstance(value, dict):
        return {name: _redacted(redaction, each) for name, each in value.items()}
    return value
