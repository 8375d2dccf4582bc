"""Rows as files, made piece by piece: CSV and JSON Lines; Parquet is in `parquet`. Changes nothing.

CSV is RFC 4180 in UTF-8 with a header; null is an empty field. A text that a spreadsheet would
take for a formula gets an apostrophe before it, since end users choose some of them.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from billing.exports.columns import Column, Kind
from billing.money import plain

PIECE_ROWS = 1000  # as much as is in memory at a time
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """A CSV file, the header first."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow([column.name for column in columns])
    for piece in pieces(rows):
        for row in piece:
            writer.writerow([_text(column, row.get(column.name)) for column in columns])
        yield _taken(buffer)
    if rest := _taken(buffer):
        yield rest


def to_json_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """One JSON object a line; the values are JSON's own."""
    for piece in pieces(rows):
        lines = (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in piece)
        yield "".join(f"{line}\n" for line in lines).encode()


def pieces(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    """Rows, so many at a time."""
    left = iter(rows)
    while piece := list(islice(left, PIECE_ROWS)):
        yield piece


def _taken(buffer: io.StringIO) -> bytes:
    piece = buffer.getvalue().encode()
    buffer.seek(0)
    buffer.truncate()
    return piece


def _text(column: Column, value: Any) -> str:
    if value is None:
        return ""
    if column.kind is Kind.INSTANT:
        return f"{instant(value):%Y-%m-%dT%H:%M:%SZ}"
    if column.kind is Kind.PAIRS:
        return pairs(value)
    if column.kind is Kind.DECIMAL:
        text = plain(value)
        return text if "." in text else f"{text}.0"
    text = str(value)
    return f"'{text}" if column.kind is Kind.TEXT and text.startswith(FORMULA) else text


def pairs(value: Any) -> str:
    """A JSON object as a field's text."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def instant(at_us: int) -> datetime:
    """A moment as files state it, to the second."""
    return datetime.fromtimestamp(at_us // 10**6, UTC)
