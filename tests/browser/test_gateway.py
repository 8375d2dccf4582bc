"""The pages of the real gateway over a real engine: from a prompt to a charge, a verdict, a fee."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_chromium import open_tab
from gateway_process import Gateway, GatewayHome, make_tenant
from playwright.sync_api import Browser, expect
from tiny_models import write_tiny_dfm

from api import keys, tenants
from api.roles import Role
from metering.database import open_database, transaction


@pytest.fixture
def home(tmp_path: Path) -> GatewayHome:
    return GatewayHome.create(tmp_path / "home", write_tiny_dfm(tmp_path / "tiny.dfm"))


@pytest.fixture
def gateway(home: GatewayHome) -> Iterator[Gateway]:
    with home.running() as running:
        yield running


def test_a_prompt_becomes_a_charge_and_its_review_moves_a_fee(
    home: GatewayHome, gateway: Gateway, chromium: Browser
) -> None:
    # Given a tenant that pays for reviews, and a tiny random model
    tenant = make_tenant(home)
    developer = tenant.key
    database = open_database(home.resolved_database_url)
    with transaction(database) as connection:
        tenants.change(connection, tenant.id, review_opt_in=True)
        finance_key, operator = (
            keys.create(connection, tenant_id=owner, role=role, name="test").secret
            for owner, role in ((tenant.id, Role.FINANCE), (None, Role.OPERATOR))
        )
    database.dispose()

    # When the tenant asks, its finance person sees the charge appear
    with open_tab(chromium) as finance:
        finance.sign_in(gateway.url, finance_key)
        expect(finance.page.locator("#balance")).to_have_text("5.00 USD")
        expect(finance.page.locator("#requests")).to_have_text("0")
        with gateway.client(developer) as client:
            # Drawn so freely that the model itself holds what was drawn for unlikely
            body = {"prompt": "def add(a, b):", "max_tokens": 16, "seed": 3, "temperature": 2}
            answer = client.post("/generate", json=body).raise_for_status().json()
        finance.page.reload()
        expect(finance.page.locator("#requests")).to_have_text("1")
        expect(finance.page.locator("#balance")).not_to_have_text("5.00 USD")
        finance.page.goto(f"{gateway.url}/dashboard/receipts/{answer['id']}")
        expect(finance.page.locator("#receipt-valid")).to_be_visible()
        total = finance.page.locator("#receipt-total").inner_text()
        assert total.split()[0].rstrip("0") == str(answer["cost"]).rstrip("0")
        finance.page.get_by_text("Show every step").click()
        steps = finance.page.locator("#trace tbody tr")
        expect(steps).to_have_count(answer["receipt"]["receipt"]["output"]["blocks"])

    # Then the operator finds the item, resolves it, and the fee has moved
    with open_tab(chromium) as tab:
        tab.sign_in(gateway.url, operator)
        expect(tab.page.get_by_role("heading", level=1)).to_have_text("Engine")
        assert re.search(r"Tokens emitted\s+16", tab.page.locator("main").inner_text())
        tab.page.get_by_role("link", name="Reviews").click()
        fee = tab.page.locator("#review-pool").inner_text()
        assert re.fullmatch(r"0\.\d+ USD", fee)
        assert fee != "0.00 USD"
        tab.page.get_by_role("row").get_by_role("link").first.click()
        expect(tab.page.get_by_text(str(answer["id"]))).to_be_visible()
        tab.page.get_by_role("button", name="Claim").click()
        tab.page.get_by_role("button", name="Approve").click()
        expect(tab.page.get_by_role("status")).to_contain_text("approved")
        expect(tab.page.locator("#fee-movements tbody tr").last).to_contain_text(
            "review poolreviewer payable"
        )
        tab.page.get_by_role("link", name="Reviews", exact=True).first.click()
        expect(tab.page.locator("#review-pool")).to_have_text("0.00 USD")
        expect(tab.page.locator("#reviewer-payable")).to_have_text(fee)
        tab.page.get_by_role("link", name="Reconciliation").click()
        expect(tab.page.locator("#reconciled")).to_have_text("No differences.")
