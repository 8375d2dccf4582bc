"""`GET /metrics`: the engine's counters and the money's open ends, for Prometheus.

Counts come from the engine and the database when scraped, never from variables of this process,
so that a restart or a second gateway doesn't falsify them.
"""

from __future__ import annotations

from collections.abc import Iterator

from litestar import get
from litestar.di import NamedDependency
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from api.gateway import Gateway
from billing import outside, review_queries
from billing import queries as billing_queries
from engine.records import EngineStats
from metering import queries as metering_queries
from metering.clock import now_us
from metering.database import snapshot

Kind = type[CounterMetricFamily] | type[GaugeMetricFamily]


class GatewayCollector(Collector):
    """Reads one consistent state at each scrape."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        """Yield every family; a rate whose denominator is still zero is left out, not zero."""
        yield from self._engine()
        with snapshot(self._gateway.database) as connection:
            totals = metering_queries.totals(connection)
            holds_open = billing_queries.holds_open(connection)
            backlog = review_queries.backlog(connection, now_us())
            reported = outside.waiting(connection)
        requests = CounterMetricFamily(
            "dflash_requests", "Requests by final status", labels=["status"]
        )
        for status, count in totals.requests_by_status.items():
            requests.add_metric([status], count)
        yield requests
        energy = CounterMetricFamily(
            "dflash_energy_joules", "Metered energy by class and use", labels=["class", "use"]
        )
        for energy_class, uses in totals.energy_uj_by_class.items():
            for use, energy_uj in uses.items():
                energy.add_metric([energy_class, use], energy_uj / 1e6)
        yield energy
        yield GaugeMetricFamily("dflash_holds_open", "Pending holds", value=holds_open)
        yield GaugeMetricFamily(
            "dflash_review_depth", "Unresolved review items", value=backlog.depth
        )
        yield GaugeMetricFamily(
            "dflash_review_age_seconds",
            "Age of the oldest unresolved review item",
            value=(backlog.oldest_us or 0) / 1e6,
        )

        yield GaugeMetricFamily(
            "dflash_reported_waiting", "Reported events not rated yet", value=reported.events
        )
        yield GaugeMetricFamily(
            "dflash_reported_unrated", "Of them, those that have no price", value=reported.unrated
        )
        oldest = reported.oldest_ingested_at_us
        yield GaugeMetricFamily(
            "dflash_reported_lag_seconds",
            "Age of the oldest event not rated yet",
            value=0 if oldest is None else (now_us() - oldest) / 1e6,
        )

    def _engine(self) -> Iterator[Metric]:
        """What the engines that answer say of themselves, by replica where there are several."""
        states = self._gateway.engine_states()
        labels = ["replica"] if len(states) > 1 else []
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        costs = GaugeMetricFamily(
            "dflash_step_cost_ms", "A step by its rows, as timed at start", labels=[*labels, "rows"]
        )
        for state in states:
            if state.stats is None:
                continue
            whose = [state.replica] if labels else []
            for kind, name, value, text in _figures(state.stats):
                family = families.setdefault(name, kind(f"dflash_{name}", text, labels=labels))
                family.add_metric(whose, value)
            for rows, cost_ms in state.stats.step_cost_ms:
                costs.add_metric([*whose, str(rows)], cost_ms)
        yield from (*families.values(), costs)


def _figures(stats: EngineStats) -> Iterator[tuple[Kind, str, float, str]]:
    counters, caches = stats.counters, stats.caches
    for name, value, text in (
        ("steps", counters.steps, "Decode steps that emitted"),
        ("emitted_tokens", counters.emitted_tokens, "Tokens emitted"),
        ("drafted_nodes", counters.drafted_nodes, "Nodes drafted"),
        ("verified_nodes", counters.verified_nodes, "Nodes verified"),
        ("accepted_tokens", counters.accepted_tokens, "Drafted tokens accepted"),
        ("cached_tokens", counters.cached_tokens, "Accepted tokens from the draft cache"),
        ("blocks", caches.blocks, "Blocks emitted"),
        ("cached_blocks", caches.cached_blocks, "Blocks with tokens from the draft cache"),
        ("followed_blocks", caches.followed_blocks, "Blocks of another request's work"),
        ("prompt_tokens", caches.prompt_tokens, "Prompt tokens of requests that emitted"),
        ("cached_prompt_tokens", caches.cached_prompt_tokens, "Of these, not computed for it"),
        ("page_evictions", caches.page_evictions, "Cached pages given up"),
        ("draft_lookups", caches.draft_lookups, "Questions to the draft cache"),
        ("draft_hits", caches.draft_hits, "Questions that it answered"),
        ("draft_evictions", caches.draft_evictions, "Documents the draft cache gave up"),
    ):
        yield CounterMetricFamily, f"engine_{name}", value, text
    if experts := caches.experts:
        for name, value, text in (
            ("expert_lookups", experts.lookups, "Experts that steps used"),
            ("expert_hits", experts.hits, "Of these, found prepared"),
            ("expert_evictions", experts.evictions, "Experts that made room for others"),
        ):
            yield CounterMetricFamily, f"engine_{name}", value, text
    for name, rate, text in (
        ("draft_hit_rate", counters.draft_hit_rate, "Accepted tokens per drafted depth"),
        ("draft_depth", counters.mean_drafted_depth, "Depth drafted per step"),
        ("node_efficiency", counters.node_efficiency, "Accepted tokens per verified node"),
        ("draft_window_hit_rate", stats.window_hit_rate, "The hit rate of the last window"),
        ("draft_window_speedup", stats.window_speedup, "Over plain decoding, in that window"),
        ("accepted_length", counters.mean_accepted_length, "Tokens emitted per step"),
        ("tokens_per_second", stats.emitted_tokens_per_s, "Decode rate of the last window"),
        ("block_reuse_rate", caches.block_reuse_rate, "Cached and followed blocks per block"),
        ("expert_cache_hit_ratio", caches.expert_cache_hit_ratio, "Experts found per use"),
    ):
        if rate is not None:
            yield GaugeMetricFamily, name, rate, text
    for name, level, text in (
        ("requests_running", stats.running, "Requests being decoded"),
        ("requests_waiting", stats.waiting, "Requests queued"),
        ("requests_following", stats.following, "Requests that ride along with another"),
        ("kv_pages_free", stats.pages_free, "Free pages"),
        ("kv_pages_used", stats.pages_used, "Pages of running requests"),
        ("kv_pages_cached", stats.pages_cached, "Pages kept for prefix reuse"),
        ("draft_cache_tokens", stats.draft_cache_tokens, "Tokens in the shared draft cache"),
        ("drafting_enabled", int(stats.draft_enabled), "1 while drafting is on"),
        ("draft_alert", int(stats.draft_alert), "1 while the hit rate is below 0.70"),
    ):
        yield GaugeMetricFamily, name, level, text


@get("/metrics", include_in_schema=False, sync_to_thread=True)
def metrics(gateway: NamedDependency[Gateway]) -> ASGIApp:
    """The metrics page."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(GatewayCollector(gateway))
    headers = {"content-type": CONTENT_TYPE_LATEST}  # which names its encoding already
    return ASGIResponse(body=generate_latest(registry), headers=headers)
