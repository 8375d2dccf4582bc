"""The exports as files to hand over: what they are called, what they are, and their bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum
from tempfile import SpooledTemporaryFile
from typing import IO

from sqlalchemy import Connection, Engine

from billing.exports import files, focus, records
from billing.exports.columns import COLUMNS, Row
from billing.exports.parquet import to_parquet
from billing.exports.records import RECEIPT_LINES, USAGE, Chosen
from metering.database import snapshot

# A tenant's projects, or everybody's where it is null: names by id.
ProjectNames = Callable[[Connection, str | None], Mapping[str, str]]

SPOOL_BYTES = 4 * 1024 * 1024
CHUNK_BYTES = 64 * 1024


class FocusForm(StrEnum):
    """What FOCUS rows can be written as."""

    CSV = "csv"
    PARQUET = "parquet"


class RecordForm(StrEnum):
    """What records can be written as."""

    JSON_LINES = "jsonl"
    CSV = "csv"


MEDIA = {
    "csv": "text/csv",
    "jsonl": "application/jsonl",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True, slots=True)
class Download:
    """A file as it is made: its bytes come piece by piece, and only once."""

    name: str
    form: FocusForm | RecordForm
    pieces: Iterator[bytes]

    @property
    def media_type(self) -> str:
        """What the file is, for HTTP."""
        return MEDIA[self.form]

    @property
    def headers(self) -> dict[str, str]:
        """That it is to be kept, under its name."""
        return {"content-disposition": f'attachment; filename="{self.name}"'}


def focus_file(
    database: Engine,
    tenant_ids: Sequence[str],
    label: str,
    form: FocusForm,
    names: ProjectNames,
) -> Download:
    """The billing period of these tenants as FOCUS rows, each from one state of the database.

    It is written to a temporary file first, so that whoever takes it slowly holds no snapshot.
    Raises UnknownTenant, InvalidPeriod or ExportUnavailable.
    """
    rows = _focus_rows(database, tenant_ids, label, names)
    write = files.to_csv if form is FocusForm.CSV else to_parquet
    spooled = _spooled(write(COLUMNS, rows))
    whose = f"-{tenant_ids[0]}" if len(tenant_ids) == 1 else ""
    return Download(f"focus-{label}{whose}.{form}", form, spooled)


def usage_file(database: Engine, chosen: Chosen, form: RecordForm, names: ProjectNames) -> Download:
    """Requests that ended in the range, and what they used."""
    with snapshot(database) as connection:
        known = names(connection, chosen.tenant_id)
    rows = records.usage(database, chosen, known)
    pieces = files.to_csv(USAGE, rows) if form is RecordForm.CSV else files.to_json_lines(rows)
    return Download(f"usage.{form}", form, pieces)


def receipts_file(database: Engine, chosen: Chosen, form: RecordForm) -> Download:
    """Receipts of requests that ended in the range: signed as JSON Lines, by line as CSV."""
    pieces = (
        files.to_csv(RECEIPT_LINES, records.receipt_lines(database, chosen))
        if form is RecordForm.CSV
        else files.to_json_lines(records.receipt_envelopes(database, chosen))
    )
    return Download(f"receipts.{form}", form, pieces)


def _focus_rows(
    database: Engine, tenant_ids: Sequence[str], label: str, names: ProjectNames
) -> Iterator[Row]:
    for tenant_id in tenant_ids:
        with snapshot(database) as connection:
            yield from focus.rows(connection, tenant_id, label, names(connection, tenant_id))


def _spooled(pieces: Iterable[bytes]) -> Iterator[bytes]:
    with ExitStack() as opened:
        file: IO[bytes] = opened.enter_context(SpooledTemporaryFile(max_size=SPOOL_BYTES))
        for piece in pieces:
            file.write(piece)
        file.seek(0)
        opened.pop_all()  # it is read later
    return _chunks(file)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
