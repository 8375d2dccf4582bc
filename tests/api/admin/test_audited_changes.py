"""Every change under `/admin` is one line of the audit log, however often it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from api_cases import HeldClock, House, bearer
from api_settled import Desk
from billing_cases import tariff, unit
from litestar import Litestar
from litestar.handlers import HTTPRouteHandler
from litestar.testing import TestClient
from sqlalchemy import Engine

from api.roles import Role
from billing import tariffs

# What computes, and keeps nothing.
NO_CHANGES = {("POST", "/admin/economics/roi")}
ASKED_BY_BODY = ("POST", "PUT", "PATCH", "DELETE")


class Changes:
    """Makes changes as the operator, and counts the lines that each leaves."""

    def __init__(self, client: TestClient[Litestar], house: House, held_clock: HeldClock) -> None:
        self.client = client
        self.clock = held_clock
        self.headers = bearer(house.operator)
        self.made: set[tuple[str, str]] = set()

    def lines(self) -> int:
        page = self.client.get("/admin/audit", headers=self.headers, params={"limit": 200})
        return len(page.json()["items"])

    def make(
        self, method: str, path: str, body: Any = None, *, lines: int = 1, **names: str
    ) -> Any:
        """Ask for a change that leaves so many lines, where `names` fill the path."""
        self.clock.advance(1)
        before = self.lines()
        answer = self.client.request(
            method, path.format(**names), headers=self.headers, json=body or None
        )
        assert answer.is_success, (path, answer.text)
        assert self.lines() - before == lines, (method, path)
        self.made.add((method, path))
        return answer.json()

    def once(self, method: str, path: str, body: Any = None, **names: str) -> Any:
        """The same twice: the second time changes nothing, and leaves no line."""
        first = self.make(method, path, body, **names)
        self.make(method, path, body, lines=0, **names)
        return first


def mutating(app: Litestar) -> set[tuple[str, str]]:
    return {
        (str(method), route.path_format)
        for route in app.routes
        for handler in getattr(route, "route_handlers", ())
        if isinstance(handler, HTTPRouteHandler)
        for method in handler.http_methods
        if method in ASKED_BY_BODY
    }


def test_every_change_is_one_line_and_what_changes_nothing_is_none(
    client: TestClient[Litestar],
    house: House,
    held_clock: HeldClock,
    sqlite_database: Engine,
    tmp_path: Path,
) -> None:
    changes = Changes(client, house, held_clock)
    make, once, tenant = changes.make, changes.once, house.tenant_id
    of = "/admin/tenants/{tenant_id}"

    make("POST", "/admin/tenants", {"name": "Another"})
    make("PATCH", of, {"name": "Acme & Sons"}, tenant_id=tenant)
    make("PUT", f"{of}/tariff", {"tariff": "composite"}, tenant_id=tenant)
    overriding = {"changes": {"output": {"per_million": "0.2"}}}
    make("PUT", f"{of}/tariff/overrides", overriding, tenant_id=tenant)
    make("POST", "/admin/tariffs", {"document": tariffs.document(tariff())})
    credit = {"amount": "5", "reference": "first"}
    once("POST", f"{of}/credit", credit, tenant_id=tenant)
    once("POST", f"{of}/grants", credit | {"reference": "gift"}, tenant_id=tenant)
    reverse = f"{of}/grants/{{reference}}/reverse"
    make("POST", reverse, tenant_id=tenant, reference="gift")
    make("PUT", f"{of}/terms", {"receivable_limit": "5"}, tenant_id=tenant)
    make("PUT", f"{of}/review-cap", {"cap": "1"}, tenant_id=tenant)
    make("PUT", f"{of}/limits", {"concurrency": 2}, tenant_id=tenant)
    budget = make("POST", f"{of}/budgets", {"limit": "1", "period": "day"}, tenant_id=tenant)
    close = f"{of}/budgets/{{budget_id}}/close"
    once("POST", close, tenant_id=tenant, budget_id=budget["id"])

    project = make("POST", f"{of}/projects", {"name": "search"}, tenant_id=tenant)
    key = make("POST", "/admin/keys", {"name": "k", "role": "developer", "tenant_id": tenant})
    key_id = key["key"]["id"]
    joining = {"project_id": project["id"]}
    make("PUT", "/admin/keys/{key_id}/project", joining, key_id=key_id)
    archive = f"{of}/projects/{{project_id}}/archive"
    once("POST", archive, tenant_id=tenant, project_id=project["id"])
    make("PUT", "/admin/keys/{key_id}/project", {"project_id": None}, key_id=key_id)
    make("POST", "/admin/keys/{key_id}/rotate", {"overlap_s": 60}, key_id=key_id)
    once("POST", "/admin/keys/{key_id}/revoke", key_id=key_id)
    source = {"name": "vllm", "source": "vllm/eu", "tenant_ids": [tenant]}
    metering_key = make("POST", "/admin/metering-keys", source)["key"]["id"]
    once("POST", "/admin/metering-keys/{key_id}/revoke", key_id=metering_key)

    desk = Desk.open(sqlite_database, tmp_path)
    desk.settle(tenant, house.key_ids[Role.DEVELOPER], "req_1", unit(1000))
    refund = {"reference": "ticket-1", "reason": "slow"}
    once("POST", "/admin/generations/{request_id}/refund", refund, request_id="req_1")
    make("PUT", f"{of}/retention", {"content_days": 30}, tenant_id=tenant)
    make("POST", f"{of}/erasures", {"everything": True}, tenant_id=tenant)
    make("POST", f"{of}/suspend", tenant_id=tenant)
    make("POST", f"{of}/resume", tenant_id=tenant)

    assert changes.made == mutating(client.app) - NO_CHANGES
