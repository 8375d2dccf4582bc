"""How the engine does: what it says of itself now, and what the meter has on record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated

from litestar import Response, get
from litestar.exceptions import NotFoundException
from litestar.params import FromQuery, QueryParameter

from dashboards.charts import Chart, ChartKind, Series
from dashboards.injected import AHost, AViewer
from dashboards.rendering import page, tenths
from dashboards.sessions import PageRequest
from metering import clock
from metering.database import snapshot
from metering.queries import EnergyUse, HealthPoint, energy_windows, engine_health

MINUTE_US = 60_000_000
HOUR_US = 60 * MINUTE_US
HIT_RATE_MIN = 0.70  # below it drafting is looked into

# hours looked back: (label, width of a point)
WINDOWS = {
    1: ("last hour", 5 * MINUTE_US),
    24: ("last 24 hours", 30 * MINUTE_US),
    168: ("last 7 days", 6 * HOUR_US),
}
PARTS = {
    "requests": "--chart-2",
    "idle": "--chart-1",
    "overhead": "--chart-3",
    "external": "--chart-5",
    "unattributed": "--chart-7",
}


@get("/engine", sync_to_thread=True)
def show_engine(
    request: PageRequest,
    host: AHost,
    operator: AViewer,
    hours: Annotated[int, QueryParameter(name="hours")] = 24,
    replica: FromQuery[str | None] = None,
) -> Response[str]:
    """A replica's health, by default the first's.

    Rates that nothing was counted for are unavailable, not zero.
    """
    if hours not in WINDOWS:
        raise NotFoundException("There is no such window.")
    label, point_us = WINDOWS[hours]
    now_us = clock.now_us()
    since_us = now_us - hours * HOUR_US
    engines = host.engines()
    shown = next((each for each in engines if each.replica == replica), None)
    if replica is not None and shown is None:
        raise NotFoundException("There is no such replica.")
    shown = shown or engines[0]
    stats = shown.stats
    with snapshot(host.database) as connection:
        health = engine_health(connection, since_us, point_us=point_us)
        energy = energy_windows(connection, since_us)
    starts = range(since_us // point_us * point_us, now_us + 1, point_us)
    hit_rate = stats.counters.draft_hit_rate if stats else None
    return page(
        request,
        "operator/engine.html",
        info=shown.info,
        engines=engines,
        replica=shown.replica,
        stats=stats,
        low_hit_rate=hit_rate is not None and hit_rate < HIT_RATE_MIN,
        windows=[(each, name) for each, (name, _) in WINDOWS.items()],
        window_h=hours,
        window_label=label,
        health=health,
        hit_rate_chart=hit_rate_chart(health.points, starts),
        energy=energy,
        energy_chart=energy_chart(energy),
    )


def hit_rate_chart(points: Sequence[HealthPoint], starts: Sequence[int]) -> Chart:
    """The hit rate over time, in percent; a point in which nothing was drafted is a gap."""
    rates = {point.start_us: point.draft_hit_rate for point in points}
    return Chart(
        id="hit-rate",
        title="Draft hit rate over time",
        kind=ChartKind.LINES,
        unit="%",
        category="From (UTC)",
        categories=tuple(
            datetime.fromtimestamp(start // 1_000_000, UTC).strftime("%m-%d %H:%M")
            for start in starts
        ),
        series=(
            Series(
                label="hit rate",
                colour="--chart-2",
                values=tuple(_percent(rates.get(start)) for start in starts),
            ),
            Series(
                label="alert below",
                colour="--chart-3",
                values=(_percent(HIT_RATE_MIN),) * len(starts),
                dashed=True,
            ),
        ),
    )


def energy_chart(energy: Sequence[EnergyUse]) -> Chart:
    """Where each meter's joules went. Parts are stacked within a meter; meters stand apart."""
    return Chart(
        id="engine-energy",
        title="Energy by meter and use",
        kind=ChartKind.STACKED_ROWS,
        unit="J",
        category="Meter",
        categories=tuple(f"{use.energy_class}, {use.device}" for use in energy),
        series=tuple(
            Series(part, colour, tuple(tenths(getattr(use, f"{part}_uj")) for use in energy))
            for part, colour in PARTS.items()
        ),
    )


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{Decimal(share) * 100:.1f}"


HANDLERS = (show_engine,)
