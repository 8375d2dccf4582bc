"""A month as settlement leaves it, made in the database: what benchmarks measure on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Engine, func, insert, inspect, select

from billing import catalogue, charged_hours, periods, tariffs
from billing.ledger import credits
from billing.money import NANO
from billing.tables import metadata as billing_metadata
from billing.tables import rated_lines, receipts, tariff_versions
from metering import clock
from metering.database import snapshot, transaction
from metering.tables import metadata as metering_metadata
from metering.tables import request_summaries
from metering.tables import requests as requests_table
from metering.tables import tenants as tenants_table

LABEL = "2026-01"
BATCH = 2_000
ENERGY = {
    "energy_class": "estimated",
    "energy_uj": 12_300_000,
    "shown_uj": 12_300_000,
    "source": "cpu_time",
    "scope": "process",
    "method": "affine-shapley/1",
    "uncertainty_pct": None,
}
COMPONENTS = (
    ("input", "", "tokens", "0.0000001"),
    ("output", "complete/standard", "tokens", "0.0000004"),
    ("output", "fragment/reduced", "tokens", "0.0000005"),
    ("energy", "estimated", "joules", "0.00000004"),
    ("information", "", "bits", "0.00000005"),
    ("blocks", "", "blocks", "0.00000002"),
    ("request", "", "requests", "0.000002"),
    ("minimum", "", "requests", "0.000001"),
)


def make(
    database: Engine, requests: int, tenants: int, lines: int, *, with_receipts: bool = False
) -> None:
    """Fill an empty database: `lines` rated lines a request, tenants in turn."""
    period = periods.month(LABEL, "UTC")
    with transaction(database) as connection:
        metering_metadata.create_all(connection)
        billing_metadata.create_all(connection)
        version_id = _version(connection)
        for number in range(tenants):
            _tenant(connection, tenant_id(number))
    step_us = (period.end_us - period.start_us) // requests
    numbers = iter(range(requests))
    while batch := list(islice(numbers, BATCH)):
        with transaction(database) as connection:
            made = [
                (
                    f"req_{number:09d}",
                    tenant_id(number % tenants),
                    period.start_us + number * step_us,
                )
                for number in batch
            ]
            connection.execute(
                insert(requests_table), [_request(*each, version_id) for each in made]
            )
            connection.execute(
                insert(rated_lines),
                [line for each in made for line in _lines(*each, version_id, lines)],
            )
            if with_receipts:
                connection.execute(insert(request_summaries), [_summary(*each) for each in made])
                connection.execute(insert(receipts), [_receipt(*each) for each in made])
    if with_receipts:  # and what the gateway does beside its requests
        with transaction(database) as connection:
            charged_hours.rebuild(connection)
        charged_hours.count_all(database, period.end_us + charged_hours.HOUR_US * 2)
    if database.dialect.name == "postgresql":
        with database.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql(
                "VACUUM ANALYZE"
            )


def is_made(database: Engine, requests: int) -> bool:
    """Whether an earlier run left such a month; closing it admits some more requests."""
    if not inspect(database).has_table(requests_table.name):
        return False
    with snapshot(database) as connection:
        made = connection.scalar(select(func.count()).select_from(requests_table))
        return (made or 0) >= requests


def tenant_id(number: int) -> str:
    """The id of one of its tenants."""
    return f"ten_{number:05d}"


def _version(connection: Connection) -> str:
    shipped = tariffs.shipped()["composite"]
    published = catalogue.publish(connection, shipped, 0)
    found = connection.scalar(select(tariff_versions.c.id))
    return found or published.id


def _tenant(connection: Connection, owner: str) -> None:
    connection.execute(
        insert(tenants_table).values(
            id=owner,
            name=owner,
            currency="USD",
            time_zone="UTC",
            review_opt_in=False,
            review_delivery="now",
            suspended=False,
            created_at_us=clock.now_us(),
        )
    )
    catalogue.assign(connection, owner, "composite", 0)
    credits.grant(connection, owner, NANO, "benchmark")


def _request(request_id: str, owner: str, at_us: int, version_id: str) -> dict[str, Any]:
    return {
        "id": request_id,
        "tenant_id": owner,
        "key_id": "key_bench",
        "model": "bench",
        "route": "generate",
        "tariff_version_id": version_id,
        "status": "completed",
        "finish_reason": "stop",
        "parameters": "{}",
        "input_tokens": 20,
        "max_tokens": 100,
        "test_mode": False,
        "started_at_us": at_us,
        "ended_at_us": at_us,
    }


def _lines(
    request_id: str, owner: str, at_us: int, version_id: str, count: int
) -> Iterator[dict[str, Any]]:
    for number, (component, detail, unit, price) in enumerate(COMPONENTS[:count]):
        yield {
            "request_id": request_id,
            "line": number,
            "tenant_id": owner,
            "tariff_version_id": version_id,
            "component": component,
            "detail": detail,
            "quantity": "12.3" if unit in ("joules", "bits") else "20",
            "unit": unit,
            "unit_price": price,
            "amount_nano": 1_000 + number,
            "currency": "USD",
            "event_time_us": at_us,
        }


def _summary(request_id: str, owner: str, at_us: int) -> dict[str, Any]:
    place = int(request_id[-4:])
    return {
        "request_id": request_id,
        "tenant_id": owner,
        "status": "completed",
        "input_tokens": 20,
        "output_tokens": 100,
        "blocks": 40,
        "complete_units": 8,
        "fragment_units": 1,
        "tier": "reduced",
        "geo_mean": f"{0.5 + place / 20_000:.4f}",
        "information_ubits": 40_000_000,
        "energy_class": "estimated",
        "energy_uj": 12_300_000 + place,
        "accepted_tokens": 60,
        "drafted_depth": 80,
        "ended_at_us": at_us,
        "body": json.dumps(
            {"request_id": request_id, "energy": ENERGY, "units": [{"index": 0}] * 9}
        ),
    }


def _receipt(request_id: str, owner: str, at_us: int) -> dict[str, Any]:
    document = json.dumps({"request_id": request_id, "lines": [{"component": "output"}] * 6})
    return {
        "request_id": request_id,
        "tenant_id": owner,
        "document": document,
        "sha256": hashlib.sha256(document.encode()).hexdigest(),
        "kid": "bench",
        "signature": "",
        "total_nano": 6_015,
        "currency": "USD",
        "created_at_us": at_us,
    }
