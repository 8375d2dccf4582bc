"""`dflash budget`, `limit` and `project`: how far and for what a tenant spends."""

from __future__ import annotations

import click

from api.admin.cli import as_json, record, show, show_all
from metering import clock
from metering.cli_context import CliContext
from metering.cli_types import COUNT_MAX

PER_MINUTE = click.IntRange(1, COUNT_MAX)


@click.group()
def budget() -> None:
    """Define, list and close budgets."""


@budget.command("define")
@click.argument("tenant_id")
@click.argument("limit")
@click.option("--period", required=True, type=click.Choice(["day", "week", "month", "ever"]))
@click.option("--soft", is_flag=True, help="Alert only; refuse nothing.")
@click.option("--key", "key_id", help="Of this key alone.")
@click.option("--project", "project_id", help="Of this project alone.")
@as_json
@click.pass_obj
def define_budget(
    context: CliContext,
    *,
    tenant_id: str,
    limit: str,
    period: str,
    soft: bool,
    key_id: str | None,
    project_id: str | None,
    as_json: bool,
) -> None:
    """Limit spending in a window of the tenant's time zone."""
    from api import keys, projects, tenants
    from api.admin.spending_schemas import BudgetView
    from billing import budgets
    from billing.money import parse_nano

    if key_id is not None and project_id is not None:
        raise click.UsageError("a budget is of one key or of one project, not of both")
    with context.transaction() as connection:
        tenants.require(connection, tenant_id)
        scope, scope_id = "tenant", None
        if key_id is not None:
            scope, scope_id = "key", keys.owned(connection, tenant_id, key_id).id
        elif project_id is not None:
            scope, scope_id = "project", projects.require(connection, tenant_id, project_id).id
        defined = budgets.define(
            connection,
            tenant_id,
            limit_nano=parse_nano(limit),
            period=period,
            hard=not soft,
            scope=scope,
            scope_id=scope_id,
        )
        record(
            connection,
            "budget.defined",
            tenant_id,
            subject=defined.id,
            limit_nano=defined.limit_nano,
            period=period,
            kind=defined.kind,
        )
        standing = budgets.standing(connection, tenant_id, defined.id, clock.now_us())
    show(BudgetView.of(standing), as_json)


@budget.command("list")
@click.argument("tenant_id")
@as_json
@click.pass_obj
def list_budgets(context: CliContext, tenant_id: str, as_json: bool) -> None:
    """List the open budgets as they stand."""
    from api import tenants
    from api.admin.spending_schemas import BudgetView
    from billing import budgets

    with context.transaction() as connection:
        tenants.require(connection, tenant_id)
        found = budgets.standings(connection, tenant_id, clock.now_us())
    show_all(map(BudgetView.of, found), as_json)


@budget.command("close")
@click.argument("tenant_id")
@click.argument("budget_id")
@as_json
@click.pass_obj
def close_budget(context: CliContext, tenant_id: str, budget_id: str, as_json: bool) -> None:
    """End a budget; what it counted stays."""
    from api.admin.spending_schemas import BudgetView
    from billing import budgets

    with context.transaction() as connection:
        before = budgets.standing(connection, tenant_id, budget_id, clock.now_us())
        budgets.close(connection, tenant_id, budget_id)
        if before.budget.closed_at_us is None:
            record(connection, "budget.closed", tenant_id, subject=budget_id)
        standing = budgets.standing(connection, tenant_id, budget_id, clock.now_us())
    show(BudgetView.of(standing), as_json)


@click.command()
@click.argument("tenant_id")
@click.option("--key", "key_id", help="Of this key alone.  [default: all of the tenant together]")
@click.option("--requests", type=PER_MINUTE, help="Requests a minute.")
@click.option("--tokens", type=PER_MINUTE, help="Tokens a minute, prompts included.")
@click.option("--joules", type=PER_MINUTE, help="Joules a minute.")
@click.option("--concurrency", type=click.IntRange(1, COUNT_MAX), help="Requests at once.")
@as_json
@click.pass_obj
def limit(
    context: CliContext,
    *,
    tenant_id: str,
    key_id: str | None,
    requests: int | None,
    tokens: int | None,
    joules: int | None,
    concurrency: int | None,
    as_json: bool,
) -> None:
    """Replace the limits of a tenant or a key; what is left out is not limited."""
    from api import keys, limits, tenants
    from api.admin.spending_schemas import LimitsView

    with context.transaction() as connection:
        tenants.require(connection, tenant_id)
        subject = limits.TENANT
        if key_id is not None:
            subject = keys.owned(connection, tenant_id, key_id).id
        wanted = limits.Limits(subject, requests, tokens, joules, concurrency)
        limits.put(connection, tenant_id, wanted)
        record(
            connection,
            "limits.changed",
            tenant_id,
            subject=subject,
            requests_per_minute=requests,
            tokens_per_minute=tokens,
            joules_per_minute=joules,
            concurrency=concurrency,
        )
    show(LimitsView.of(wanted), as_json)


@click.group()
def project() -> None:
    """Create, list and archive projects, and put keys into them."""


@project.command("create")
@click.argument("tenant_id")
@click.argument("name")
@as_json
@click.pass_obj
def create_project(context: CliContext, tenant_id: str, name: str, as_json: bool) -> None:
    """Create a project."""
    from api import projects
    from api.admin.spending_schemas import ProjectView

    with context.transaction() as connection:
        created = projects.create(connection, tenant_id, name)
        record(connection, "project.created", tenant_id, subject=created.id, name=name)
    show(ProjectView.of(created), as_json)


@project.command("list")
@click.argument("tenant_id")
@as_json
@click.pass_obj
def list_projects(context: CliContext, tenant_id: str, as_json: bool) -> None:
    """List a tenant's projects, archived ones too."""
    from api import projects, tenants
    from api.admin.spending_schemas import ProjectView

    with context.transaction() as connection:
        tenants.require(connection, tenant_id)
        found = projects.listing(connection, tenant_id)
    show_all(map(ProjectView.of, found), as_json)


@project.command("archive")
@click.argument("tenant_id")
@click.argument("project_id")
@as_json
@click.pass_obj
def archive_project(context: CliContext, tenant_id: str, project_id: str, as_json: bool) -> None:
    """Take no new keys for a project."""
    from api import projects
    from api.admin.spending_schemas import ProjectView

    with context.transaction() as connection:
        was_open = projects.require(connection, tenant_id, project_id).archived_at_us is None
        archived = projects.archive(connection, tenant_id, project_id)
        if was_open:
            record(connection, "project.archived", tenant_id, subject=project_id)
    show(ProjectView.of(archived), as_json)


@project.command("key")
@click.argument("tenant_id")
@click.argument("project_id")
@click.argument("key_id")
@as_json
@click.pass_obj
def put_key(
    context: CliContext, *, tenant_id: str, project_id: str, key_id: str, as_json: bool
) -> None:
    """Count a key's requests for a project from now on."""
    from api import keys, projects
    from api.admin.schemas import KeyView

    with context.transaction() as connection:
        projects.put_key(connection, tenant_id, project_id, key_id)
        record(connection, "key.project_changed", tenant_id, subject=key_id, project_id=project_id)
        key = keys.owned(connection, tenant_id, key_id)
    show(KeyView.of(key), as_json)
