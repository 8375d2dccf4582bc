"""Recorded readings of a source, as a file of JSON lines: how it was had, then each reading.

{"schema": "dflash.energy-trace/1", "source": "nvml_total_energy", ...}
[0, 81523000, 0, 0]                nanoseconds since the first, own and external uJ, origin
[50113402, null, null, 0]          it did not answer
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from metering import clock
from metering.energy.protocols import EnergySource, Reading
from metering.energy.provenance import Provenance
from metering.errors import InvalidTrace, SourceUnavailable

SCHEMA = "dflash.energy-trace/1"


class TraceHead(msgspec.Struct, frozen=True):
    """What a trace is of."""

    schema: str
    provenance: Provenance


class Entry(NamedTuple):
    """One reading; without totals where the source did not answer."""

    offset_ns: int
    own_uj: int | None
    external_uj: int | None
    origin: int


class Trace(NamedTuple):
    """A trace as it was read: entries in order of time, the first at 0."""

    provenance: Provenance
    entries: list[Entry]


def record(source: EnergySource, path: Path, seconds: float, period_ms: int) -> int:
    """Write what a source says over some time to a new file; returns the number of readings.

    Raises FileExistsError rather than overwrite one, and SourceUnavailable when the source doesn't
    answer at first.
    """
    first = source.read()
    until_ns = first.at_ns + round(seconds * 1e9)
    count = 0
    with path.open("xb") as file:
        _line(file, TraceHead(SCHEMA, source.provenance))
        entry: Entry | None = _entry(first, first)
        while entry is not None:
            _line(file, entry)
            count += 1
            time.sleep(period_ms / 1000)
            now_ns = clock.monotonic_ns()
            try:
                entry = _entry(source.read(), first)
            except SourceUnavailable:
                entry = Entry(now_ns - first.at_ns, None, None, first.origin)
            if now_ns > until_ns:
                entry = None
    return count


def read(path: Path) -> Trace:
    """Read a trace; raises InvalidTrace for a file that is none, or holds no stretch of time."""
    try:
        head, *lines = path.read_bytes().splitlines()
        about = msgspec.json.decode(head, type=TraceHead)
        entries = [msgspec.json.decode(line, type=Entry) for line in lines]
    except (OSError, ValueError) as error:
        raise InvalidTrace(f"{path} is no energy trace: {error}") from error
    if about.schema != SCHEMA:
        raise InvalidTrace(f"{path} is of schema {about.schema!r}, not {SCHEMA!r}")
    if not about.provenance.devices or not all(about.provenance.devices):
        raise InvalidTrace(f"{path} does not say which devices it is of")
    offsets = [entry.offset_ns for entry in entries]
    if offsets != sorted(set(offsets)) or not offsets or offsets[0] != 0:
        raise InvalidTrace(f"{path}: readings must come in order of time, the first at 0")
    if sum(entry.own_uj is not None for entry in entries) < 2:
        raise InvalidTrace(f"{path} holds fewer than two readings")
    if any((entry.own_uj is None) is not (entry.external_uj is None) for entry in entries):
        raise InvalidTrace(f"{path}: a reading has both totals or neither")
    return Trace(about.provenance, entries)


def _entry(reading: Reading, first: Reading) -> Entry:
    offset_ns = reading.at_ns - first.at_ns
    return Entry(offset_ns, reading.own_uj, reading.external_uj, reading.origin)


def _line(file: BinaryIO, value: object) -> None:
    file.write(msgspec.json.encode(value) + b"\n")
