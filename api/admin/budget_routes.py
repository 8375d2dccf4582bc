"""`/admin/tenants/{id}/budgets`, `/limits` and `/projects`: how far and for what it spends."""

from __future__ import annotations

import msgspec
from litestar import get, post, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from sqlalchemy import Connection
from sqlalchemy import Engine as Database

from api import keys, limits, projects, tenants
from api.admin.records import record
from api.admin.schemas import KeyView
from api.admin.spending_schemas import (
    BudgetList,
    BudgetRequest,
    BudgetView,
    KeyProject,
    LimitsList,
    LimitsRequest,
    LimitsView,
    ProjectList,
    ProjectRequest,
    ProjectView,
)
from api.auth import Principal, Scope, requires, tenant_in_scope
from api.error_reports import documented
from api.errors import Conflict, Forbidden, InvalidParameter, NotFound, Unauthenticated
from api.schemas import PathId
from billing import budgets
from billing.errors import (
    InvalidAmount,
    InvalidBudget,
)
from billing.money import parse_nano
from metering import clock
from metering.database import snapshot, transaction

REFUSALS = (Unauthenticated, Forbidden, NotFound)


@post(
    "/tenants/{tenant_id:str}/budgets",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Define a budget",
    responses=documented(InvalidAmount, InvalidBudget, *REFUSALS),
    sync_to_thread=True,
)
def define_budget(
    data: JSONBody[BudgetRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> BudgetView:
    """Limit what the tenant, a key or a project spends in a window of the tenant's time zone."""
    if data.key_id is not None and data.project_id is not None:
        raise InvalidBudget("a budget is of one key or of one project, not of both")
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        scope, scope_id = "tenant", None
        if data.key_id is not None:
            scope, scope_id = "key", keys.owned(connection, asked, data.key_id).id
        elif data.project_id is not None:
            scope = "project"
            scope_id = projects.require(connection, asked, data.project_id).id
        budget = budgets.define(
            connection,
            asked,
            limit_nano=parse_nano(data.limit),
            period=data.period,
            hard=data.kind == "hard",
            scope=scope,
            scope_id=scope_id,
            alerts=data.alerts,
        )
        record(
            connection,
            principal,
            "budget.defined",
            asked,
            subject=budget.id,
            limit_nano=budget.limit_nano,
            period=budget.period,
            kind=budget.kind,
        )
        return _budget(connection, asked, budget.id)


@get(
    "/tenants/{tenant_id:str}/budgets",
    guards=[requires(Scope.READ_BILLING)],
    summary="List budgets",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def list_budgets(
    principal: NamedDependency[Principal], database: NamedDependency[Database], tenant_id: PathId
) -> BudgetList:
    """The open budgets as they stand: what is spent, and what live requests hold."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        found = budgets.standings(connection, asked, clock.now_us())
        return BudgetList([BudgetView.of(each) for each in found])


@post(
    "/tenants/{tenant_id:str}/budgets/{budget_id:str}/close",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Close a budget",
    status_code=200,
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def close_budget(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
    budget_id: PathId,
) -> BudgetView:
    """End a budget; requests that it counts already keep to it. Idempotent."""
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        standing = budgets.standing(connection, asked, budget_id, clock.now_us())
        budgets.close(connection, asked, budget_id)
        if standing.budget.closed_at_us is None:
            record(connection, principal, "budget.closed", asked, subject=budget_id)
        return _budget(connection, asked, budget_id)


@put(
    "/tenants/{tenant_id:str}/limits",
    guards=[requires(Scope.ADMINISTER)],
    summary="Limit a tenant or a key",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def put_limits(
    data: JSONBody[LimitsRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> LimitsView:
    """Replace the limits of a key, or of the tenant, on requests, tokens, joules and concurrency.

    They hold across processes; the key's share of `DFLASH_REQUESTS_PER_MINUTE` holds besides.
    """
    with transaction(database) as connection:
        tenants.require(connection, tenant_id)
        subject = limits.TENANT
        if data.key_id is not None:
            subject = keys.owned(connection, tenant_id, data.key_id).id
        values = {
            name: value for name, value in msgspec.structs.asdict(data).items() if name != "key_id"
        }
        put = limits.put(connection, tenant_id, limits.Limits(subject, **values))
        record(connection, principal, "limits.changed", tenant_id, subject=subject, **values)
    return LimitsView.of(put)


@get(
    "/tenants/{tenant_id:str}/limits",
    guards=[requires(Scope.READ_BILLING)],
    summary="List limits",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def list_limits(
    principal: NamedDependency[Principal], database: NamedDependency[Database], tenant_id: PathId
) -> LimitsList:
    """The limits of the tenant and of its keys."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return LimitsList([LimitsView.of(each) for each in limits.listing(connection, asked)])


@post(
    "/tenants/{tenant_id:str}/projects",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Create a project",
    responses=documented(InvalidParameter, Conflict, *REFUSALS),
    sync_to_thread=True,
)
def create_project(
    data: JSONBody[ProjectRequest],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
) -> ProjectView:
    """Create a project; keys are put into it, and their requests count for it."""
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        project = projects.create(connection, asked, data.name)
        record(connection, principal, "project.created", asked, subject=project.id, name=data.name)
    return ProjectView.of(project)


@get(
    "/tenants/{tenant_id:str}/projects",
    guards=[requires(Scope.READ_BILLING)],
    summary="List projects",
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def list_projects(
    principal: NamedDependency[Principal], database: NamedDependency[Database], tenant_id: PathId
) -> ProjectList:
    """A tenant's projects, archived ones too."""
    with snapshot(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        return ProjectList([ProjectView.of(each) for each in projects.listing(connection, asked)])


@post(
    "/tenants/{tenant_id:str}/projects/{project_id:str}/archive",
    guards=[requires(Scope.MANAGE_TENANT)],
    summary="Archive a project",
    status_code=200,
    responses=documented(InvalidParameter, *REFUSALS),
    sync_to_thread=True,
)
def archive_project(
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    tenant_id: PathId,
    project_id: PathId,
) -> ProjectView:
    """Take no new keys for a project. Idempotent."""
    with transaction(database) as connection:
        asked = tenant_in_scope(connection, principal, tenant_id)
        was_open = projects.require(connection, asked, project_id).archived_at_us is None
        project = projects.archive(connection, asked, project_id)
        if was_open:
            record(connection, principal, "project.archived", asked, subject=project_id)
    return ProjectView.of(project)


@put(
    "/keys/{key_id:str}/project",
    guards=[requires(Scope.MANAGE_KEYS)],
    summary="Put a key into a project",
    responses=documented(InvalidParameter, Conflict, *REFUSALS),
    sync_to_thread=True,
)
def put_key_project(
    data: JSONBody[KeyProject],
    principal: NamedDependency[Principal],
    database: NamedDependency[Database],
    key_id: PathId,
) -> KeyView:
    """Count a tenant's key for a project from now on, or for none."""
    with transaction(database) as connection:
        key = keys.in_reach(connection, principal, key_id)
        if key.tenant_id is None:
            raise NotFound(f"no key {key_id} of a tenant")
        projects.put_key(connection, key.tenant_id, data.project_id, key_id)
        record(
            connection,
            principal,
            "key.project_changed",
            key.tenant_id,
            subject=key_id,
            project_id=data.project_id,
        )
        return KeyView.of(keys.owned(connection, principal.tenant_id, key_id))


def _budget(connection: Connection, tenant_id: str, budget_id: str) -> BudgetView:
    return BudgetView.of(budgets.standing(connection, tenant_id, budget_id, clock.now_us()))


ROUTES = [
    define_budget,
    list_budgets,
    close_budget,
    put_limits,
    list_limits,
    create_project,
    list_projects,
    archive_project,
    put_key_project,
]
