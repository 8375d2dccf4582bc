"""Parquet, written as it is read: nothing but `files` imports this, since pyarrow is an extra."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow
import pyarrow.parquet

from billing.exports.columns import PLACES, Column, Kind
from billing.exports.files import instant, pairs

DIGITS = 38
TYPES = {
    Kind.TEXT: pyarrow.string(),
    Kind.DECIMAL: pyarrow.decimal128(DIGITS, PLACES),
    Kind.INSTANT: pyarrow.timestamp("ms", tz="UTC"),  # the coarsest that Parquet has
    Kind.PAIRS: pyarrow.string(),
}


def write(
    columns: Sequence[Column], pieces: Iterable[Sequence[Mapping[str, Any]]]
) -> Iterator[bytes]:
    """A Parquet file, a row group for each piece, the footer last."""
    schema = pyarrow.schema([(column.name, TYPES[column.kind]) for column in columns])
    sink = _Sink()
    with pyarrow.parquet.ParquetWriter(sink, schema) as writer:
        for piece in pieces:
            cells = [[_cell(column, row.get(column.name)) for row in piece] for column in columns]
            arrays = [
                pyarrow.array(each, type=field.type)
                for each, field in zip(cells, schema, strict=True)
            ]
            writer.write_batch(pyarrow.record_batch(arrays, schema=schema))
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """Where Parquet is written to: knows how much it got, and keeps it until it is taken."""

    def __init__(self) -> None:
        super().__init__()
        self._held = bytearray()
        self._length = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._length

    def write(self, data: Any) -> int:
        piece = bytes(data)
        self._held += piece
        self._length += len(piece)
        return len(piece)

    def taken(self) -> bytes:
        piece = bytes(self._held)
        self._held.clear()
        return piece


def _cell(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.kind is Kind.INSTANT:
        return instant(value)
    return pairs(value) if column.kind is Kind.PAIRS else value
