"""Rows as Parquet, written as they are read. pyarrow is an extra that need not be installed."""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from billing.errors import ExportUnavailable
from billing.exports.columns import PLACES, Column, Kind
from billing.exports.files import instant, pairs, pieces

DIGITS = 38


def to_parquet(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """A Parquet file, one row group for each piece, the footer last.

    Raises ExportUnavailable, before the first row is read, where pyarrow is absent.
    """
    try:
        pyarrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ExportUnavailable("Parquet needs pyarrow: install dflash-gateway[export]") from error
    types = {
        Kind.DECIMAL: pyarrow.decimal128(DIGITS, PLACES),
        Kind.INSTANT: pyarrow.timestamp("ms", tz="UTC"),  # the coarsest that Parquet has
    }
    schema = pyarrow.schema(
        [(column.name, types.get(column.kind, pyarrow.string())) for column in columns]
    )
    return _written(pyarrow, parquet, schema, columns, rows)


def _written(
    pyarrow: Any,
    parquet: Any,
    schema: Any,
    columns: Sequence[Column],
    rows: Iterable[Mapping[str, Any]],
) -> Iterator[bytes]:
    sink = _Sink()
    with parquet.ParquetWriter(sink, schema) as writer:
        for piece in pieces(rows):
            arrays = [
                pyarrow.array([_cell(column, row.get(column.name)) for row in piece], field.type)
                for column, field in zip(columns, schema, strict=True)
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
