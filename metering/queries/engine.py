"""How the engine does: counts since ever for the scraper, rates of a window for the operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec
from sqlalchemy import Connection, func, select

from metering.events import EnergyClass, RequestStatus
from metering.ingestion.outside import ROUTE as OUTSIDE
from metering.queries.energy import PARTS
from metering.tables import engine_counters, meter_windows, request_summaries, requests

MINUTE_US = 60 * 10**6


class Totals(msgspec.Struct, frozen=True):
    """Counts since the database began."""

    requests_by_status: Mapping[RequestStatus, int]
    energy_uj_by_class: Mapping[EnergyClass, Mapping[str, int]]  # uses: "requests", "idle", ...
    steps: int
    blocks: int
    tokens: int
    withheld_tokens: int


class HealthPoint(msgspec.Struct, frozen=True):
    """The requests that ended in one stretch of a window. Rates are null without a denominator."""

    start_us: int
    requests: int
    output_tokens: int
    draft_hit_rate: float | None
    mean_accepted_length: float | None


class EngineHealth(msgspec.Struct, frozen=True):
    """The requests that ended since a time, and how drafting went in them."""

    requests: int
    failed: int
    live: int  # not final now
    output_tokens: int
    draft_hit_rate: float | None
    mean_accepted_length: float | None
    points: tuple[HealthPoint, ...]


def totals(connection: Connection) -> Totals:
    """Counts since ever, for a scraper that takes rates itself."""
    by_status = connection.execute(select(requests.c.status, func.count()).group_by("status"))
    uses = PARTS[1:]
    energy = connection.execute(
        select(
            meter_windows.c.energy_class, *(func.sum(meter_windows.c[part]) for part in uses)
        ).group_by(meter_windows.c.energy_class)
    )
    names = ("steps", "blocks", "tokens", "withheld_tokens")
    counters = connection.execute(
        select(*(func.coalesce(func.sum(engine_counters.c[name]), 0) for name in names))
    ).one()
    return Totals(
        requests_by_status={RequestStatus(status): count for status, count in by_status},
        energy_uj_by_class={
            EnergyClass(energy_class): {
                use.removesuffix("_uj"): int(value) for use, value in zip(uses, values, strict=True)
            }
            for energy_class, *values in energy
        },
        **{name: int(value) for name, value in zip(names, counters, strict=True)},
    )


def engine_health(
    connection: Connection, since_us: int, *, point_us: int = 5 * MINUTE_US
) -> EngineHealth:
    """The window from `since_us` until now, with a point for every `point_us` in it.

    What other engines reported is none of it: it has tokens, and no steps.
    """
    column = request_summaries.c
    rows = connection.execute(
        select(
            (column.ended_at_us // point_us).label("point"),
            column.status,
            func.count(),
            func.sum(column.output_tokens),
            func.sum(column.blocks),
            func.sum(column.accepted_tokens),
            func.sum(column.drafted_depth),
        )
        .join(requests, requests.c.id == column.request_id)
        .where(column.ended_at_us >= since_us, requests.c.route != OUTSIDE)
        .group_by("point", column.status)
    )
    points: defaultdict[int, list[int]] = defaultdict(lambda: [0] * 5)
    failed = 0
    for point, status, *counts in rows:
        failed += counts[0] if status == RequestStatus.FAILED.value else 0
        points[point] = [a + int(b) for a, b in zip(points[point], counts, strict=True)]
    ended, tokens, blocks, accepted, depth = (
        (sum(values) for values in zip(*points.values(), strict=True))
        if points
        else (0, 0, 0, 0, 0)
    )
    live = connection.scalar(
        select(func.count())
        .select_from(requests)
        .where(requests.c.status.in_([RequestStatus.ADMITTED.value, RequestStatus.RUNNING.value]))
    )
    return EngineHealth(
        requests=ended,
        failed=failed,
        live=live or 0,
        output_tokens=tokens,
        draft_hit_rate=_rate(accepted, depth),
        mean_accepted_length=_rate(tokens, blocks),
        points=tuple(
            HealthPoint(
                start_us=point * point_us,
                requests=counts[0],
                output_tokens=counts[1],
                draft_hit_rate=_rate(counts[3], counts[4]),
                mean_accepted_length=_rate(counts[1], counts[2]),
            )
            for point, counts in sorted(points.items())
        ),
    )


def _rate(count: int, of: int) -> float | None:
    return count / of if of else None
