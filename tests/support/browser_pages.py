"""The pages on a small application of their own, over a database settled through real doors."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import billing_cases
import uvicorn
from api_cases import House, make_house
from api_settled import Desk
from litestar import Litestar
from sqlalchemy import Engine, insert

from api import audit, keys, tenants
from api.roles import Role
from dashboards.pages import dashboard_router
from dashboards.protocols import EngineState
from engine.records import DraftCounters, EngineInfo, EngineStats
from metering import clock
from metering.database import transaction
from metering.energy import Grid
from metering.events import ConfidenceSummary, ConfidenceTier, EnergyClass, EnergySummary
from metering.tables import meter_windows

SECRET = b"a secret of tests, thirty-two bytes or more"
STATS = EngineStats(
    running=2,
    waiting=1,
    draft_enabled=True,
    counters=DraftCounters(
        steps=400,
        emitted_tokens=1000,
        drafted_nodes=1300,
        drafted_depth=900,
        verified_nodes=1700,
        accepted_tokens=600,
        cached_tokens=120,
    ),
    pages_free=800,
    pages_used=150,
    pages_cached=74,
    draft_cache_tokens=70_123,
    emitted_tokens_per_s=31.25,
    window_hit_rate=0.61,
    window_speedup=1.125,
    step_cost_ms=((1, 3.0), (8, 6.5)),
)


class World:
    """A tenant with all keys, credit and an opt-in to reviews; requests on demand."""

    def __init__(self, database: Engine, folder: Path) -> None:
        self.database = database
        self.stats: EngineStats | None = STATS
        self.other_engines: list[EngineState] = []
        self.info: EngineInfo | None = billing_cases.ENGINE
        self.desk = Desk.open(database, folder)
        self.house = self.add_house("Acme Analytics")
        self._number = 0
        self.grid: Grid | None = None

    def add_house(self, name: str) -> House:
        """Another tenant on the composite tariff, with credit."""
        house = make_house(self.database, name)
        self.desk.fund(house.tenant_id)
        with transaction(self.database) as connection:
            tenants.change(connection, house.tenant_id, review_opt_in=True)
        return house

    def settle(self, *units: Any, geo_mean: str = "0.9600", **fields: Any) -> str:
        """Run one request through admission and settlement; its id."""
        self._number += 1
        request_id = f"req_{self._number:032x}"
        house = fields.pop("house", self.house)
        tokens = sum(each.tokens for each in units) or 10
        tier = tier_of(geo_mean)
        score = ConfidenceSummary(tokens, "-1.000000", geo_mean, "0.3000", None, "geo_mean", tier)
        fields.setdefault("confidence", score)
        if tier is ConfidenceTier.REVIEW:
            fields.setdefault("review_reason", "request_confidence")
        self.desk.settle(
            house.tenant_id, house.key_ids[Role.DEVELOPER], request_id, *units, **fields
        )
        return request_id

    def no_energy(self) -> EnergySummary:
        """A share of a meter that nobody could read."""
        return EnergySummary(EnergyClass.UNAVAILABLE, None, None, "none", "none", "none", None)

    def meter(self) -> None:
        """A settled stretch of the meter."""
        with transaction(self.database) as connection:
            connection.execute(
                insert(meter_windows).values(
                    device="pid:4242",
                    epoch="first",
                    source="cpu_time",
                    energy_class="estimated",
                    start_ns=0,
                    end_ns=10**9,
                    recorded_at_us=clock.now_us(),
                    meter_uj=9_000_000,
                    requests_uj=6_000_000,
                    idle_uj=2_500_000,
                    overhead_uj=400_000,
                    external_uj=100_000,
                    unattributed_uj=0,
                )
            )

    def reviewer_key(self) -> str:
        """The secret of another reviewer's key."""
        with transaction(self.database) as connection:
            return keys.create(connection, tenant_id=None, role=Role.REVIEWER, name="r").secret

    def revoke(self, key_id: str) -> None:
        """End a key."""
        with transaction(self.database) as connection:
            keys.revoke(connection, key_id)

    def app(self) -> Litestar:
        """The pages and nothing else."""
        return Litestar(
            route_handlers=[
                dashboard_router(
                    project_names=lambda _connection, _tenant_id: {},
                    database=self.database,
                    authenticate=keys.authenticate,
                    recall=keys.principal_of,
                    audit=audit.write,
                    signer=self.desk.signer,
                    engines=lambda: [
                        EngineState("main", self.info, self.stats),
                        *self.other_engines,
                    ],
                    session_secret=SECRET,
                    grid=self.grid,
                )
            ],
            logging_config=None,
            openapi_config=None,
        )


def tier_of(geo_mean: str) -> ConfidenceTier:
    """The tier of a score."""
    if geo_mean >= "0.95":
        return ConfidenceTier.STANDARD
    return ConfidenceTier.REDUCED if geo_mean >= "0.70" else ConfidenceTier.REVIEW


@contextmanager
def serving(app: Litestar) -> Iterator[str]:
    """Serve on a free port of this process until the block ends; gives the base URL."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join()
