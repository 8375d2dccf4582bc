"""Budgets: what a tenant, a key or a project may spend in a window of the tenant's time.

A hard budget is reserved in the transaction of the hold and refuses what does not fit; a soft one
only counts. Both alert at per cents of their limit. A request counts in the window in which it was
admitted, however long it runs. Everything here runs under the tenant's lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import uuid_utils
from sqlalchemy import Connection, Select, and_, bindparam, func, insert, or_, select, update

from billing import lineages
from billing.budget_windows import Period, Window, window_beside
from billing.credit_tables import budget_reservations, budget_windows, budgets
from billing.errors import BudgetExhausted, InvalidBudget, UnknownBudget
from billing.money import format_nano
from billing.notices import NoticeType, announce
from billing.rows import insert_once
from metering import clock
from metering.prepared import Prepared
from metering.tables import requests, tenants

ALERTS_DEFAULT = (50, 80, 100)
ALERTS_MAX = 10


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget. `scope_id` names a key or a project; null is all of the tenant.

    A key's budget is that of all keys of its lineage together.
    """

    id: str
    tenant_id: str
    scope: str
    scope_id: str | None
    kind: str
    period: Period
    limit_nano: int
    alerts: tuple[int, ...]
    created_at_us: int
    closed_at_us: int | None


@dataclass(frozen=True, slots=True)
class Standing:
    """A budget in the window of a moment."""

    budget: Budget
    window: Window
    spent_nano: int
    reserved_nano: int

    @property
    def left_nano(self) -> int:
        """What a hard budget still lets through; below zero where refunds or terms changed."""
        return self.budget.limit_nano - self.spent_nano - self.reserved_nano


def define(
    connection: Connection,
    tenant_id: str,
    *,
    limit_nano: int,
    period: str,
    hard: bool,
    scope: str = "tenant",
    scope_id: str | None = None,
    alerts: Sequence[int] = ALERTS_DEFAULT,
) -> Budget:
    """Add a budget, which counts from now. Raises InvalidBudget.

    Whether the key or project exists, and is this tenant's, is for the caller to check.
    """
    if period not in {each.value for each in Period}:
        raise InvalidBudget("a period is day, week, month or ever")
    if scope not in {"tenant", "key", "project"} or (scope == "tenant") != (scope_id is None):
        raise InvalidBudget("a budget is the tenant's, or of one key or one project")
    if limit_nano < 0:
        raise InvalidBudget("a limit is not below zero")
    if list(alerts) != sorted(set(alerts)) or len(alerts) > ALERTS_MAX:
        raise InvalidBudget(f"alerts are at most {ALERTS_MAX} ascending per cents")
    if any(not 1 <= pct <= 100 for pct in alerts):
        raise InvalidBudget("an alert is a per cent from 1 to 100")
    budget = Budget(
        id=f"bud_{uuid_utils.uuid7().hex}",
        tenant_id=tenant_id,
        scope=scope,
        scope_id=scope_id,
        kind="hard" if hard else "soft",
        period=Period(period),
        limit_nano=limit_nano,
        alerts=tuple(alerts),
        created_at_us=clock.now_us(),
        closed_at_us=None,
    )
    connection.execute(
        insert(budgets).values(
            id=budget.id,
            tenant_id=tenant_id,
            scope=scope,
            scope_id=scope_id,
            kind=budget.kind,
            period=budget.period.value,
            limit_nano=limit_nano,
            alerts=msgspec.json.encode(budget.alerts).decode(),
            created_at_us=budget.created_at_us,
        )
    )
    return budget


def close(connection: Connection, tenant_id: str, budget_id: str) -> None:
    """End a budget; what it counted stays. A second time, or for another's, changes nothing."""
    connection.execute(
        update(budgets)
        .where(budgets.c.id == budget_id, budgets.c.tenant_id == tenant_id)
        .where(budgets.c.closed_at_us.is_(None))
        .values(closed_at_us=clock.now_us())
    )


def standings(connection: Connection, tenant_id: str, at_us: int) -> list[Standing]:
    """Every open budget of a tenant, oldest first, as it stands at a moment. Changes nothing."""
    query = _open(tenant_id).order_by(budgets.c.created_at_us, budgets.c.id)
    zone = _zone(connection, tenant_id)
    found = [_shown(connection, _budget(row)) for row in connection.execute(query)]
    return [_standing(connection, each, at_us, zone) for each in found]


def standing(connection: Connection, tenant_id: str, budget_id: str, at_us: int) -> Standing:
    """One budget of a tenant, closed ones too, as it stands at a moment. Raises UnknownBudget."""
    row = connection.execute(
        select(budgets).where(budgets.c.id == budget_id, budgets.c.tenant_id == tenant_id)
    ).one_or_none()
    if row is None:
        raise UnknownBudget(f"no budget {budget_id!r}")
    shown = _shown(connection, _budget(row))
    return _standing(connection, shown, at_us, _zone(connection, tenant_id))


_OWN = budget_reservations.c.request_id == bindparam("request_id")
_KEPT = select(budget_reservations.c.budget_id).where(_OWN)
_COUNTS = or_(
    budgets.c.scope == "tenant",
    and_(
        budgets.c.scope == "key",
        lineages.lineage_of(budgets.c.scope_id) == lineages.lineage_of(requests.c.key_id),
    ),
    and_(budgets.c.scope == "project", budgets.c.scope_id == requests.c.project_id),
)
_APPLYING = Prepared(
    select(
        budgets,
        requests.c.started_at_us,
        tenants.c.time_zone,
        budget_windows.c.start_us,
        budget_windows.c.end_us,
        budget_windows.c.spent_nano,
        budget_windows.c.reserved_nano,
    )
    .join(requests, requests.c.tenant_id == budgets.c.tenant_id)
    .join(tenants, tenants.c.id == budgets.c.tenant_id)
    .outerjoin(budget_reservations, _OWN & (budget_reservations.c.budget_id == budgets.c.id))
    .outerjoin(
        budget_windows,
        (budget_windows.c.budget_id == budgets.c.id)
        & (budget_windows.c.start_us == budget_reservations.c.start_us),
    )
    .where(requests.c.id == bindparam("request_id"))
    .where(
        or_(
            budgets.c.id.in_(_KEPT),
            and_(~_KEPT.exists(), budgets.c.closed_at_us.is_(None), _COUNTS),
        )
    )
    .order_by(budgets.c.id)
)


def applying(connection: Connection, request_id: str) -> list[Standing]:
    """The budgets that a request counts in, as they stand in its window.

    A request with reservations already keeps to exactly those, and to their windows, though its
    tenant may have moved to another time zone since.
    """
    rows = _APPLYING.rows(connection, {"request_id": request_id})
    found = []
    for row in rows:
        budget = _budget(row)
        found.append(
            _standing(connection, budget, row.started_at_us, ZoneInfo(row.time_zone))
            if row.start_us is None
            else _counted(budget, row)
        )
    return found


def headroom(found: Sequence[Standing]) -> int | None:
    """What every hard budget still lets through; null where there is none."""
    left = [max(0, each.left_nano) for each in found if each.budget.kind == "hard"]
    return min(left) if left else None


def check(found: Sequence[Standing], amount_nano: int) -> None:
    """Raise BudgetExhausted for the first hard budget that does not let an amount through."""
    for each in found:
        if each.budget.kind == "hard" and amount_nano > max(0, each.left_nano):
            raise BudgetExhausted(
                each.budget.id,
                needed_nano=amount_nano,
                limit_nano=each.budget.limit_nano,
                spent_nano=each.spent_nano,
                held_nano=each.reserved_nano,
                resets_at_us=each.window.end_us,
            )


def reserve(
    connection: Connection, request_id: str, found: Sequence[Standing], amount_nano: int
) -> None:
    """Count an amount as reserved in every budget; the caller has checked that it fits."""
    for each in found:
        _count(connection, request_id, each, reserved=amount_nano, spent=0)


def settle(connection: Connection, request_id: str, spent_nano: int) -> None:
    """Turn what a request reserved into what it spent, and alert where a threshold was passed."""
    for each in _reserved(connection, request_id):
        standing, own = each
        _count(connection, request_id, standing, reserved=-own.reserved_nano, spent=spent_nano)
        _alert(connection, standing, standing.spent_nano + spent_nano)


def give_back(connection: Connection, request_id: str, amount_nano: int) -> None:
    """Take a refund off what the request's budgets have spent."""
    for standing, own in _reserved(connection, request_id):
        part = min(amount_nano, own.spent_nano)
        _count(connection, request_id, standing, reserved=0, spent=-part)


_RESERVATIONS = Prepared(select(budget_reservations).where(_OWN))


def _reserved(connection: Connection, request_id: str) -> list[tuple[Standing, Any]]:
    rows = _RESERVATIONS.rows(connection, {"request_id": request_id})
    own = {row.budget_id: row for row in rows}
    if not own:
        return []
    return [(each, own[each.budget.id]) for each in applying(connection, request_id)]


def _count(
    connection: Connection, request_id: str, standing: Standing, *, reserved: int, spent: int
) -> None:
    window = {"budget_id": standing.budget.id, "start_us": standing.window.start_us}
    insert_once(
        connection,
        budget_windows,
        {
            **window,
            "end_us": standing.window.end_us,
            "reserved_nano": 0,
            "spent_nano": 0,
            "alerted_pct": 0,
        },
    )
    insert_once(
        connection,
        budget_reservations,
        {**window, "request_id": request_id, "reserved_nano": 0, "spent_nano": 0},
    )
    for table, rows in (
        (budget_windows, budget_windows.c.start_us == standing.window.start_us),
        (budget_reservations, budget_reservations.c.request_id == request_id),
    ):
        connection.execute(
            update(table)
            .where(table.c.budget_id == standing.budget.id, rows)
            .values(
                reserved_nano=table.c.reserved_nano + reserved,
                spent_nano=table.c.spent_nano + spent,
            )
        )


def _alert(connection: Connection, standing: Standing, spent_nano: int) -> None:
    budget, start_us = standing.budget, standing.window.start_us
    passed = [pct for pct in budget.alerts if spent_nano * 100 >= budget.limit_nano * pct]
    if not passed:
        return
    alerted = update(budget_windows).where(
        budget_windows.c.budget_id == budget.id,
        budget_windows.c.start_us == start_us,
        budget_windows.c.alerted_pct < passed[-1],
    )
    if connection.execute(alerted.values(alerted_pct=passed[-1])).rowcount:
        announce(
            connection,
            budget.tenant_id,
            NoticeType.BUDGET_THRESHOLD,
            f"{budget.id}/{start_us}/{passed[-1]}",
            {
                "budget_id": budget.id,
                "scope": budget.scope,
                "scope_id": _shown(connection, budget).scope_id,
                "kind": budget.kind,
                "threshold_pct": passed[-1],
                "limit": format_nano(budget.limit_nano),
                "spent": format_nano(spent_nano),
                "window_start_us": start_us,
                "window_end_us": standing.window.end_us,
            },
        )


def _standing(connection: Connection, budget: Budget, at_us: int, zone: ZoneInfo) -> Standing:
    start_us = budget_windows.c.start_us
    own = select(budget_windows).where(budget_windows.c.budget_id == budget.id)
    begun = own.where(start_us <= at_us).order_by(start_us.desc()).limit(1)
    row = connection.execute(begun).one_or_none()
    if row is not None and at_us in (last := _counted(budget, row)).window:
        return last
    since = own.where(start_us > at_us).with_only_columns(func.min(start_us))
    ended_us, next_us = None if row is None else row.end_us, connection.scalar(since)
    window = window_beside(budget.period, at_us, zone, ended_us=ended_us, next_us=next_us)
    return Standing(budget, window, 0, 0)


def _counted(budget: Budget, row: Any) -> Standing:
    window = Window(row.start_us, row.end_us)
    return Standing(budget, window, row.spent_nano, row.reserved_nano)


def _shown(connection: Connection, budget: Budget) -> Budget:
    """A key's budget under the newest key of its lineage."""
    if budget.scope != "key" or budget.scope_id is None:
        return budget
    return replace(budget, scope_id=lineages.newest(connection, budget.scope_id))


def _open(tenant_id: str) -> Select[*tuple[Any, ...]]:
    return select(budgets).where(budgets.c.tenant_id == tenant_id, budgets.c.closed_at_us.is_(None))


def _zone(connection: Connection, tenant_id: str) -> ZoneInfo:
    name = connection.scalar(select(tenants.c.time_zone).where(tenants.c.id == tenant_id))
    return ZoneInfo(name or "UTC")


def _budget(row: Any) -> Budget:
    found = row._asdict()
    values = {column.name: found[column.name] for column in budgets.columns}
    values["period"] = Period(row.period)
    values["alerts"] = tuple(msgspec.json.decode(row.alerts))
    return Budget(**values)
