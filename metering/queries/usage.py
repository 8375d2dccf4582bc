"""Usage of finished requests over time, and how their answers scored.

Buckets are those of a time zone. Days are added up one by one, between their instants; hours from
quarters of an hour, of which every zone's offset is a multiple. Minutes are the same everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from decimal import Decimal
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, func, select

from metering.energy.provenance import SHOWN_STEP_UJ
from metering.events import EnergyClass
from metering.local_days import begin_us, filled, runs
from metering.tables import request_summaries

SLOT_US = 15 * 60 * 10**6
MINUTE_US = 60 * 10**6
_COUNTS = (
    "requests",
    "input_tokens",
    "output_tokens",
    "complete_units",
    "fragment_units",
    "information_ubits",
    "unscored",
)


class Bucket(StrEnum):
    """How long a bucket is."""

    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"


class ClassEnergy(msgspec.Struct, frozen=True):
    """Energy of one class; classes are never added up. Null where unavailable."""

    energy_class: EnergyClass
    requests: int
    shown_uj: int | None  # each request floored to 0.1 J: what its tenant sees and pays
    energy_uj: int | None


class UsageBucket(msgspec.Struct, frozen=True):
    """What the requests used that ended in one bucket."""

    start_us: int
    requests: int
    input_tokens: int
    output_tokens: int
    complete_units: int
    fragment_units: int
    information_ubits: int  # of the requests that have a score
    unscored: int  # requests with output and no score, or without output
    energy: tuple[ClassEnergy, ...]


class ScoreBin(msgspec.Struct, frozen=True):
    """How many requests scored in `[low, high)`; the last bin includes 1."""

    low: str
    high: str
    requests: int


def usage(
    connection: Connection,
    tenant_id: str | None,
    start_us: int,
    end_us: int,
    bucket: Bucket,
    *,
    zone: tzinfo = UTC,
) -> list[UsageBucket]:
    """Usage of requests that ended in `[start, end)`, by bucket; buckets without any are absent."""
    sums: defaultdict[int, dict[str, int]] = defaultdict(lambda: dict.fromkeys(_COUNTS, 0))
    energy: defaultdict[int, dict[EnergyClass, list[int]]] = defaultdict(dict)
    owned = [] if tenant_id is None else [request_summaries.c.tenant_id == tenant_id]
    read = _by_day if bucket is Bucket.DAY else _by_slot
    for start, energy_class, shown, exact, *counts in read(
        connection, owned, start_us, end_us, bucket=bucket, zone=zone
    ):
        for name, count in zip(_COUNTS, counts, strict=True):
            sums[start][name] += int(count or 0)
        of_class = energy[start].setdefault(EnergyClass(energy_class), [0, 0, 0])
        for place, value in enumerate((counts[0], shown, exact)):
            of_class[place] += int(value or 0)
    return [
        UsageBucket(start_us=start, energy=_classes(energy[start]), **sums[start])
        for start in sorted(sums)
    ]


def confidence_histogram(
    connection: Connection, tenant_id: str | None, start_us: int, end_us: int, bins: int = 20
) -> list[ScoreBin]:
    """How requests that ended in `[start, end)` scored: every bin, the empty ones too.

    `bins` divides 100: scores are counted by hundredths.
    """
    if not 1 <= bins <= 100 or 100 % bins:
        raise ValueError(f"{bins} does not divide 100")
    column = request_summaries.c
    hundredth = func.substr(column.geo_mean, 1, 4)  # "0.97" of "0.9712": four places are fixed
    query = (
        select(hundredth, func.count())
        .where(column.ended_at_us >= start_us, column.ended_at_us < end_us)
        .where(column.geo_mean.is_not(None))
        .group_by(hundredth)
    )
    if tenant_id is not None:
        query = query.where(column.tenant_id == tenant_id)
    counts = [0] * bins
    for text, count in connection.execute(query):
        counts[min(bins - 1, int(Decimal(text) * bins))] += int(count)
    return [
        ScoreBin(_hundredths(place, bins), _hundredths(place + 1, bins), count)
        for place, count in enumerate(counts)
    ]


_ENDED = request_summaries.c.ended_at_us
_SUMS = (
    request_summaries.c.energy_class,
    func.sum(request_summaries.c.energy_uj - request_summaries.c.energy_uj % SHOWN_STEP_UJ),
    func.sum(request_summaries.c.energy_uj),
    func.count(),
    func.sum(request_summaries.c.input_tokens),
    func.sum(request_summaries.c.output_tokens),
    func.sum(request_summaries.c.complete_units),
    func.sum(request_summaries.c.fragment_units),
    func.sum(request_summaries.c.information_ubits),
    func.count() - func.count(request_summaries.c.geo_mean),
)
Sums = Iterator[tuple[Any, ...]]  # where the bucket begins, then as in `_SUMS`


def _by_day(
    connection: Connection,
    owned: Sequence[ColumnElement[bool]],
    start_us: int,
    end_us: int,
    *,
    bucket: Bucket,
    zone: tzinfo,
) -> Sums:
    """One query for all days of one length, from the first request to the last."""
    within = (*owned, start_us <= _ENDED, end_us > _ENDED)
    for run in runs(filled(connection, _ENDED, within, zone), zone):
        query = (
            select(run.place(_ENDED).label("place"), *_SUMS)
            .where(*owned, run.from_us <= _ENDED, run.until_us > _ENDED)
            .group_by("place", request_summaries.c.energy_class)
        )
        for place, *sums in connection.execute(query):
            yield (begin_us(run.day(place), zone), *sums)


def _by_slot(
    connection: Connection,
    owned: Sequence[ColumnElement[bool]],
    start_us: int,
    end_us: int,
    *,
    bucket: Bucket,
    zone: tzinfo,
) -> Sums:
    """One query for slots of which every bucket is made."""
    slot_us = MINUTE_US if bucket is Bucket.MINUTE else SLOT_US
    query = (
        select((_ENDED // slot_us).label("slot"), *_SUMS)
        .where(*owned, start_us <= _ENDED, end_us > _ENDED)
        .group_by("slot", request_summaries.c.energy_class)
    )
    for slot, *sums in connection.execute(query):
        yield (_hour_us(slot * slot_us, zone) if bucket is Bucket.HOUR else slot * slot_us, *sums)


def _classes(by_class: dict[EnergyClass, list[int]]) -> tuple[ClassEnergy, ...]:
    return tuple(
        ClassEnergy(energy_class, count, None, None)
        if energy_class is EnergyClass.UNAVAILABLE
        else ClassEnergy(energy_class, count, shown, exact)
        for energy_class, (count, shown, exact) in sorted(by_class.items())
    )


def _hour_us(at_us: int, zone: tzinfo) -> int:
    local = datetime.fromtimestamp(at_us // 10**6, zone)
    return int(local.replace(minute=0, second=0, microsecond=0).timestamp()) * 10**6


def _hundredths(place: int, bins: int) -> str:
    return f"{Decimal(place) / bins:.2f}"
