"""Every page on both databases, with something on it and with nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import msgspec
import pytest
from billing_cases import energy, unit
from browser_pages import World
from litestar import Litestar
from litestar.testing import TestClient
from sqlalchemy import Engine

from api import keys, tenants
from api.roles import Role
from billing import budgets, periods
from billing.invoices import closing, parties
from billing.ledger import credits, grants, terms
from billing.payments import collection
from billing.settlement import Settlement
from dashboards.protocols import EngineState
from engine.records import CacheCounters, ExpertCounters
from metering import clock
from metering import requests as usage_requests
from metering.database import transaction
from metering.energy import Grid
from metering.energy.replicas import SAMPLES_MIN, Basis, Candidate, Figure, green
from metering.events import EnergyClass
from metering.requests import AdmittedRequest

TENANT_PAGES = ("/overview", "/receipts", "/statement", "/invoices")
OPERATOR_PAGES = (
    "/engine",
    "/engine?hours=1",
    "/engine?hours=168",
    "/reviews",
    "/reviews?state=claimed",
    "/reviews?state=resolved",
    "/reviews?state=lapsed",
    "/reviewers",
    "/calibrations",
    "/reconciliation",
    "/unrated",
    "/economics",
    "/economics?per_hour=2.50&per_kwh=0.30",
    "/economics?per_hour=2.50&per_kwh=0.30&period=2026-11",
)


@pytest.fixture
def world(database: Engine, tmp_path: Path) -> World:
    return World(database, tmp_path)


@pytest.fixture
def client(world: World) -> Iterator[TestClient[Litestar]]:
    with TestClient(world.app()) as opened:
        yield opened


def sign_in(client: TestClient[Litestar], key: str) -> None:
    token = re.search(r'name="csrf_token" value="([^"]+)"', client.get("/dashboard/sign-in").text)
    assert token is not None
    client.post("/dashboard/sign-in", data={"key": key, "csrf_token": token[1]})


@pytest.mark.parametrize("settled", [False, True], ids=["empty", "settled"])
def test_every_page_can_be_made(world: World, client: TestClient[Litestar], settled: bool) -> None:
    details: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    if settled:
        request_id = world.settle(unit(8, tier="review"), unit(2, "fragment"), geo_mean="0.4000")
        world.meter()
        details = (f"/receipts/{request_id}", f"/receipts/{request_id}/receipt.json")
        items = (f"/reviews/rev_{request_id}",)
    sign_in(client, world.house.owner)
    for path in (*TENANT_PAGES, "/receipts/keys.json", *details):
        assert client.get(f"/dashboard{path}").status_code == 200, path
    client.cookies.clear()
    sign_in(client, world.house.operator)
    for path in (*OPERATOR_PAGES, *items):
        assert client.get(f"/dashboard{path}").status_code == 200, path


def test_margins_are_of_the_last_days_or_of_a_month(
    world: World, client: TestClient[Litestar]
) -> None:
    request_id = world.settle(unit(8))
    assert request_id
    sign_in(client, world.house.operator)
    label = periods.containing(clock.now_us(), "UTC").label
    days = client.get("/dashboard/economics?per_hour=2.50").text
    month = client.get(f"/dashboard/economics?per_hour=2.50&period={label}").text
    for page in (days, month):
        assert "Margin by tenant" in page
        assert re.search(r'<table id="margins">.*<td class="num">1</td>', page, re.DOTALL)
    assert "without prices of the month" in days
    assert f"{label} of each tenant" in month
    wrong = client.get("/dashboard/economics?per_hour=2.50&period=soon")
    assert wrong.status_code == 400
    assert "2026-11" in wrong.text  # as a month is written
    nowhere = client.get("/dashboard/economics?per_hour=2.50&currency=ZZZ")
    assert nowhere.status_code == 400
    assert "no currency" in nowhere.text


def test_the_engines_page_says_what_a_step_costs_and_whether_drafting_pays(
    world: World, client: TestClient[Litestar]
) -> None:
    sign_in(client, world.house.operator)
    page = client.get("/dashboard/engine").text
    assert re.search(r'id="step-cost".*?8</th>.*?6\.50</td>', page, re.DOTALL)
    assert "1.12 times as fast" in page
    assert "mean depth 2.25, 0.35 accepted a node" in page


def test_an_invoice_has_a_page_and_a_paper_for_its_tenant_alone(
    world: World, client: TestClient[Litestar]
) -> None:
    world.settle(unit(8))
    issuer = parties.Issuer("Example", grace_us=0)
    with transaction(world.database) as connection:
        parties.set_issuer(connection, issuer)
        zone = tenants.require(connection, world.house.tenant_id).time_zone
    month = periods.containing(clock.now_us(), zone)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "now_us", lambda: month.end_us)
        (closed,) = closing.close(world.database, month.label, world.house.tenant_id)
    sign_in(client, world.house.finance)
    assert "INV-000001" in client.get("/dashboard/invoices").text
    page = client.get(f"/dashboard/invoices/{closed.invoice_id}")
    assert "Invoice INV-000001" in page.text
    paper = client.get(f"/dashboard/invoices/{closed.invoice_id}/pdf")
    assert paper.content.startswith(b"%PDF-")
    figures = client.get(f"/dashboard/invoices/{closed.invoice_id}/json").json()
    assert figures["number"] == "INV-000001"
    client.cookies.clear()
    sign_in(client, world.add_house("Another").owner)
    for path in ("", "/pdf", "/json"):
        found = client.get(f"/dashboard/invoices/{closed.invoice_id}{path}")
        assert found.status_code == 404, path


def test_a_tenant_is_told_since_when_its_payments_fail(
    world: World, client: TestClient[Litestar]
) -> None:
    tenant_id = world.house.tenant_id
    with transaction(world.database) as connection:
        collection.enrol(connection, tenant_id, "finance@example.com", "USD")
    sign_in(client, world.house.finance)
    assert "Payments have failed" not in client.get("/dashboard/invoices").text
    with transaction(world.database) as connection:
        collection.note_past_due(connection, tenant_id, 1_767_268_800 * 10**6)
    assert "Payments have failed since 2026-01-01" in client.get("/dashboard/invoices").text


def test_a_request_that_still_runs_has_a_page_and_no_receipt(
    world: World, client: TestClient[Litestar]
) -> None:
    with transaction(world.database) as connection:
        usage_requests.admit(
            connection,
            AdmittedRequest(
                id="req_live",
                tenant_id=world.house.tenant_id,
                key_id=world.house.key_ids[Role.DEVELOPER],
                model="tiny",
                route="generate",
                tariff_version_id="composite@1",
                parameters={},
                prompt={"prompt": "hello"},
                input_tokens=1,
                max_tokens=1,
                max_cost_nano=None,
                end_user=None,
                tags=None,
                test_mode=False,
                started_at_us=clock.now_us(),
            ),
        )
    sign_in(client, world.house.owner)
    page = client.get("/dashboard/receipts/req_live").text
    assert "a receipt follows when it does" in page
    assert "still running" in page
    assert client.get("/dashboard/receipts/req_live/receipt.json").status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/overview?from=tomorrow", 400),
        ("/overview?from=2026-02-02&to=2026-02-01", 400),
        ("/receipts?cursor=nonsense", 404),
        ("/statement?cursor=%C3%A9", 404),
        ("/engine?hours=2", 404),
        ("/engine?hours=x", 400),
        ("/reviews?state=burnt", 404),
        ("/reviews?cursor=nonsense", 404),
        ("/reviews/rev_nobody", 404),
        ("/calibrations?version=cal_none", 404),
        ("/reviews/%00", 400),
        ("/receipts/%00", 400),
        (f"/receipts/{'x' * 500}", 400),
    ],
)
def test_an_address_that_makes_no_sense_is_refused_on_a_page(
    world: World, client: TestClient[Litestar], path: str, status: int
) -> None:
    operator = path.startswith(("/engine", "/reviews", "/calibrations"))
    sign_in(client, world.house.operator if operator else world.house.owner)
    answer = client.get(f"/dashboard{path}")
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert "Traceback" not in answer.text


def test_a_tenant_sees_its_budgets_and_grants_where_it_has_any(
    world: World, client: TestClient[Litestar]
) -> None:
    sign_in(client, world.house.finance)
    assert 'id="budgets"' not in client.get("/dashboard/overview").text
    with transaction(world.database) as connection:
        tenant_id = world.house.tenant_id
        budgets.define(connection, tenant_id, limit_nano=7 * 10**9, period="month", hard=True)
        grants.issue(connection, tenant_id, 10**9, "welcome", promotional=True, expires_at_us=2**51)
        terms.change(connection, tenant_id, receivable_limit_nano=9 * 10**9)
    shown = client.get("/dashboard/overview").text
    for text in ('id="budgets"', "Hard, per month", "welcome", "promotional", "Postpaid"):
        assert text in shown


@pytest.mark.parametrize(
    ("currency", "whole", "odd"),
    [
        ("JPY", "1234", '1234<span class="fine">.5</span>'),
        ("KWD", "1234.000", '1234.500<span class="fine"></span>'),
    ],
)
def test_amounts_have_the_decimals_of_the_tenants_currency(
    world: World, client: TestClient[Litestar], currency: str, whole: str, odd: str
) -> None:
    with transaction(world.database) as connection:
        tenant = tenants.create(connection, name="Abroad", currency=currency)
        key = keys.create(connection, tenant_id=tenant.id, role=Role.FINANCE, name="books")
        credits.grant(connection, tenant.id, 1234 * 10**9, "first")
    sign_in(client, key.secret)
    pages = [client.get(f"/dashboard/{name}").text for name in ("overview", "statement")]
    assert all(f">{whole}<" in page for page in pages)
    with transaction(world.database) as connection:
        credits.grant(connection, tenant.id, 5 * 10**8, "second")
    assert odd in client.get("/dashboard/overview").text


def test_a_receipt_says_how_joules_were_had_and_sees_them_as_carbon_where_a_grid_is_named(
    world: World,
) -> None:
    world.grid = Grid(Decimal("360.5"))
    measured = energy("measured", 12_345_678)
    request_id = world.settle(
        unit(8),
        energy=msgspec.structs.replace(
            measured, weights="default", devices=("GPU-a", "GPU-b"), update_period_us=99_700
        ),
    )
    late = msgspec.structs.replace(measured, shown_uj=7_300_000)
    with transaction(world.database) as connection:
        Settlement(world.desk.signer).settle_late(connection, request_id, late)
    with TestClient(world.app()) as client:
        sign_in(client, world.house.owner)
        page = client.get(f"/dashboard/receipts/{request_id}").text
        overview = client.get("/dashboard/overview").text
    for said in ("GPU-a, GPU-b", "every 100 ms", "affine-shapley/1", "weights: default"):
        assert said in page
    assert "0.001232 g CO₂e at 360.5 g/kWh: a view, not a measurement" in page
    assert "late energy: 7.3 J" in page
    assert "does not verify" not in page
    assert "0.001232 g" in overview


def test_a_green_receipt_shows_what_was_chosen_from_and_the_discount(
    world: World, client: TestClient[Litestar]
) -> None:
    basis = Basis(EnergyClass.MEASURED, "nvml_total_energy", "gpu_board")
    choice = green(
        [
            Candidate("eco", 0, 4, Figure(basis, SAMPLES_MIN, 123_456.0)),
            Candidate("fast", 0, 4, Figure(basis, SAMPLES_MIN, 400_000.0)),
            Candidate("new", 0, 4),
        ]
    )
    request_id = world.settle(
        unit(8),
        energy=energy("measured", 12_345_678),
        green=True,
        carries={"parameters": {"seed": 1, "green": choice.stated()}},
    )
    plain = world.settle(unit(8))
    world.other_engines.append(EngineState("eco", world.info, None, choice.candidates[0].figure))
    sign_in(client, world.house.owner)
    page = client.get(f"/dashboard/receipts/{request_id}").text
    assert "ran on eco: a token took the least there" in page
    assert "which was multiplied by 0.8" in page
    rows = re.findall(r'<th scope="row">(\w+)</th><td class="num">(.*?)</td>', page)
    assert rows[-3:] == [
        ("eco", "0.12"),
        ("fast", "0.40"),
        ("new", '<span class="unavailable">unavailable</span>'),
    ]
    assert "Green energy" not in client.get(f"/dashboard/receipts/{plain}").text
    client.cookies.clear()
    sign_in(client, world.house.operator)
    engines = client.get("/dashboard/engine?replica=eco").text
    assert 'id="engine-replicas"' in engines
    assert "0.123" in engines
    assert client.get("/dashboard/engine?replica=none").status_code == 404


def test_the_experts_at_hand_are_shown_where_the_model_has_some(
    world: World, client: TestClient[Litestar]
) -> None:
    sign_in(client, world.house.operator)
    assert "Expert cache" not in client.get("/dashboard/engine").text
    assert world.stats is not None
    caches = CacheCounters(experts=ExpertCounters(kept=96, lookups=400, hits=350, evictions=7))
    world.stats = msgspec.structs.replace(world.stats, caches=caches)
    page = re.sub(r"<[^>]*>", " ", client.get("/dashboard/engine").text)
    assert re.search(r"Expert cache hit ratio\s+87.5.%\s+since start; 96 prepared, 7 gave", page)
