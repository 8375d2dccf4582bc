"""What pages and scrapers read, on both databases."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import msgspec
import pytest
from metering_cases import (
    VOCAB_SIZE,
    add_tenant,
    admitted_request,
    block,
    step,
)
from sqlalchemy import Connection, Engine, insert

from engine.records import FinishReason, Work
from metering import bodies, event_log, queries, requests
from metering.database import snapshot, transaction
from metering.energy.provenance import shown_uj
from metering.events import (
    EndedBy,
    EnergyClass,
    EnergySummary,
    RequestStatus,
)
from metering.ingestion import outside
from metering.ingestion.envelopes import ReportedUsage
from metering.queries import Bucket
from metering.recorder import counters
from metering.recorder.counters import Counts
from metering.request_meter import RequestMeter
from metering.review_rule import ReviewRule
from metering.tables import meter_windows

HOUR_US = 3600 * 10**6
DAY_US = 24 * HOUR_US


def admit(
    connection: Connection, request_id: str, tenant_id: str = "acme", started_at_us: int = 0
) -> requests.AdmittedRequest:
    admitted = msgspec.structs.replace(
        admitted_request(request_id, tenant_id), started_at_us=started_at_us
    )
    requests.admit(connection, admitted)
    return admitted


def energy(energy_uj: int | None) -> EnergySummary:
    known = energy_uj is not None
    return EnergySummary(
        energy_class=EnergyClass.ESTIMATED if known else EnergyClass.UNAVAILABLE,
        energy_uj=energy_uj,
        shown_uj=shown_uj(energy_uj),
        source="cpu_time" if known else "none",
        scope="process" if known else "none",
        method="affine-shapley/1" if known else "none",
        uncertainty_pct=40 if known else None,
    )


def ended(
    connection: Connection,
    request_id: str,
    ended_at_us: int,
    *,
    tenant_id: str = "acme",
    energy_uj: int | None = 150_000,
    status: RequestStatus = RequestStatus.COMPLETED,
    logprob: float = -0.01,
) -> None:
    """A request with two blocks, five tokens, a complete unit and a fragment."""
    admitted = admit(connection, request_id, tenant_id, ended_at_us)
    meter = RequestMeter(admitted, ReviewRule(0.0))
    for each in (
        block(0, "One", ". ", request_id=request_id, logprob=logprob),
        block(1, "T", "w", "é", request_id=request_id, logprob=logprob, accepted=2, drafted=4),
    ):
        body = bodies.block_body(step(0), each, Work(), VOCAB_SIZE)
        meter.fold(body)
        event_log.append(
            connection, [bodies.state(bodies.BlockRun((body,)), tenant_id, ended_at_us)]
        )
    end = meter.terminal(status, FinishReason.LENGTH, EndedBy.TENANT)
    summary = meter.summary(end, ended_at_us, energy(energy_uj))
    requests.finalise(connection, summary, meter.output)


@pytest.fixture
def filled(database: Engine) -> Engine:
    with transaction(database) as connection:
        for name in ("acme", "other"):
            add_tenant(connection, name)
        ended(connection, "req_1", DAY_US + HOUR_US)
        ended(connection, "req_2", DAY_US + 23 * HOUR_US, energy_uj=None)
        ended(connection, "req_3", 2 * DAY_US, energy_uj=260_000, logprob=-0.4)
        ended(connection, "req_4", 2 * DAY_US, tenant_id="other", status=RequestStatus.FAILED)
        admit(connection, "req_5", started_at_us=2 * DAY_US + 1)
    return database


def test_a_request_is_found_by_its_tenant_and_by_the_operator(filled: Engine) -> None:
    with snapshot(filled) as connection:
        row = queries.request(connection, "acme", "req_1")
        assert row is not None
        assert (row.status, row.finish_reason) == (RequestStatus.COMPLETED, "length")
        assert (row.parameters, row.prompt, row.tags) == (
            {"seed": 7},
            "Say hello.",
            {"team": "blue"},
        )
        assert row.output == "One. Twé"
        assert queries.request(connection, None, "req_4") is not None
        assert queries.request(connection, "acme", "req_4") is None
        assert queries.request(connection, "acme", "req_9") is None


def test_a_request_that_runs_has_no_summary(filled: Engine) -> None:
    with snapshot(filled) as connection:
        assert queries.summary(connection, "req_5") is None
        summary = queries.summary(connection, "req_1")
    assert summary is not None
    assert summary.output_tokens == 5


def test_a_trace_has_the_blocks_of_one_request_in_order(filled: Engine) -> None:
    with snapshot(filled) as connection:
        first, second = queries.trace(connection, "req_3").blocks
        assert queries.trace(connection, "req_5").blocks == ()
    assert (first.index, second.index) == (0, 1)
    assert (second.drafted_nodes, second.drafted_depth, second.accepted_tokens) == (4, 4, 2)
    assert (first.ended_us, second.ended_us) == (0, 0)
    assert [len(each.tokens) for each in (first, second)] == [2, 3]
    assert [each.energy for each in (first, second)] == ["unavailable", "unavailable"]
    assert {(each.logprob_unats, each.entropy_unats) for each in second.tokens} == {
        (-400_000, 500_000)
    }


def test_usage_is_summed_by_day_and_energy_class(filled: Engine) -> None:
    with snapshot(filled) as connection:
        first, second = queries.usage(connection, "acme", 0, 9 * DAY_US, Bucket.DAY)
    assert (first.start_us, second.start_us) == (DAY_US, 2 * DAY_US)
    assert (first.requests, first.input_tokens, first.output_tokens) == (2, 10, 10)
    assert (first.complete_units, first.fragment_units, first.unscored) == (2, 2, 0)
    assert first.information_ubits == 2 * 5 * 14_427
    assert [
        (each.energy_class, each.requests, each.shown_uj, each.energy_uj) for each in first.energy
    ] == [
        (EnergyClass.ESTIMATED, 1, 100_000, 150_000),
        (EnergyClass.UNAVAILABLE, 1, None, None),
    ]


def test_days_are_those_of_the_time_zone(filled: Engine) -> None:
    """At +05:45, 23:00 UTC is tomorrow already."""
    with snapshot(filled) as connection:
        days = queries.usage(
            connection, "acme", 0, 9 * DAY_US, Bucket.DAY, zone=ZoneInfo("Asia/Kathmandu")
        )
    # In January 1970 the offset there was five and a half hours.
    assert [(day.start_us, day.requests) for day in days] == [
        (DAY_US - 5 * HOUR_US - HOUR_US // 2, 1),
        (2 * DAY_US - 5 * HOUR_US - HOUR_US // 2, 2),
    ]


def test_usage_is_half_open_in_time(filled: Engine) -> None:
    with snapshot(filled) as connection:
        assert queries.usage(connection, "acme", 0, DAY_US + HOUR_US, Bucket.HOUR) == []
        [hour] = queries.usage(connection, "acme", 0, DAY_US + HOUR_US + 1, Bucket.HOUR)
        everyone = queries.usage(connection, None, 2 * DAY_US, 3 * DAY_US, Bucket.DAY)
    assert hour.requests == 1
    assert everyone[0].requests == 2


def test_scores_fall_into_bins(filled: Engine) -> None:
    with snapshot(filled) as connection:
        bins = queries.confidence_histogram(connection, "acme", 0, 9 * DAY_US, bins=10)
    assert len(bins) == 10
    assert [(each.low, each.high, each.requests) for each in bins if each.requests] == [
        ("0.60", "0.70", 1),
        ("0.90", "1.00", 2),
    ]
    with snapshot(filled) as connection, pytest.raises(ValueError, match="divide"):
        queries.confidence_histogram(connection, "acme", 0, 1, bins=7)


def test_the_engines_health_counts_who_ended(filled: Engine) -> None:
    with snapshot(filled) as connection:
        health = queries.engine_health(connection, DAY_US + 2 * HOUR_US)
        nothing = queries.engine_health(connection, 9 * DAY_US)
    assert (health.requests, health.failed, health.live) == (3, 1, 1)
    assert health.output_tokens == 15
    assert health.draft_hit_rate == 0.5
    assert health.mean_accepted_length == 2.5
    assert [(point.start_us, point.requests) for point in health.points] == [
        (DAY_US + 23 * HOUR_US, 1),
        (2 * DAY_US, 2),
    ]
    assert (nothing.requests, nothing.draft_hit_rate, nothing.points) == (0, None, ())


def test_what_another_engine_did_is_not_the_health_of_ours(filled: Engine) -> None:
    since_us = DAY_US + 2 * HOUR_US
    with transaction(filled) as connection:
        before = queries.engine_health(connection, since_us)
        found = ReportedUsage("other", 20, 4_000, "5")
        admitted = outside.request_of(
            found,
            identity=("acme", "vllm", "event-1"),
            key_id="key_1",
            at_us=2 * DAY_US,
            tariff="token/1",
        )
        requests.admit(connection, admitted)
        requests.finalise(connection, outside.summary_of(found, admitted), "")
        assert queries.engine_health(connection, since_us) == before
        [_, day] = queries.usage(connection, "acme", 0, 9 * DAY_US, Bucket.DAY)
    assert day.output_tokens == 5 + 4_000


def window(start_ns: int, **parts: int) -> dict[str, object]:
    names = ("requests_uj", "idle_uj", "overhead_uj", "external_uj", "unattributed_uj")
    amounts = {name: parts.get(name.removesuffix("_uj"), 0) for name in names}
    return {
        "device": "pid:1",
        "epoch": "e/0",
        "source": "cpu_time",
        "energy_class": "estimated",
        "start_ns": start_ns,
        "end_ns": start_ns + 10,
        "recorded_at_us": start_ns,
        "meter_uj": sum(amounts.values()),
        **amounts,
    }


def test_energy_windows_and_counters_are_totalled(filled: Engine) -> None:
    counted = Counts()
    counted.of("one").steps, counted.of("one").tokens = 3, 7
    counted.of("two").tokens = 5
    with transaction(filled) as connection:
        connection.execute(
            insert(meter_windows), [window(0, requests=5, idle=2), window(10, overhead=1)]
        )
        counters.add(connection, counted)
        counters.add(connection, counted)
        counters.add(connection, Counts())
    with snapshot(filled) as connection:
        [use] = queries.energy_windows(connection, 0)
        [late] = queries.energy_windows(connection, 5, 100)
        assert queries.energy_windows(connection, 0, 0) == []
        totals = queries.totals(connection)
    assert (use.meter_uj, use.requests_uj, use.idle_uj, use.overhead_uj) == (8, 5, 2, 1)
    assert (use.windows, use.energy_class) == (2, EnergyClass.ESTIMATED)
    assert late.meter_uj == 1
    assert totals.requests_by_status == {
        RequestStatus.COMPLETED: 3,
        RequestStatus.FAILED: 1,
        RequestStatus.ADMITTED: 1,
    }
    assert totals.energy_uj_by_class == {
        EnergyClass.ESTIMATED: {
            "requests": 5,
            "idle": 2,
            "overhead": 1,
            "external": 0,
            "unattributed": 0,
        }
    }
    assert (totals.steps, totals.tokens) == (6, 24)


def test_the_tenant_is_found(filled: Engine) -> None:
    with snapshot(filled) as connection:
        tenant = queries.tenant(connection, "acme")
        assert queries.tenant(connection, "nobody") is None
    assert tenant is not None
    assert (tenant.name, tenant.currency, tenant.time_zone) == ("Acme", "USD", "UTC")
