"""`dflash retention`: how long content is kept, and erasing it."""

from __future__ import annotations

import click
import msgspec

from api.admin.cli import as_json, record, show
from metering.cli_context import CliContext


class Kept(msgspec.Struct, frozen=True):
    """What a tenant's retention is; null days keep content until it is erased."""

    tenant_id: str
    content_days: int | None


class Erased(msgspec.Struct, frozen=True):
    """Of how many requests the content was erased."""

    tenant_id: str
    requests: int


@click.group()
def retention() -> None:
    """Say how long content is kept, and erase it."""


@retention.command()
@click.argument("tenant_id")
@click.option("--days", type=click.IntRange(0, 36_500), help="[default: until it is erased]")
@as_json
@click.pass_obj
def keep(context: CliContext, tenant_id: str, days: int | None, as_json: bool) -> None:
    """Keep a tenant's prompts and outputs for so many days after each answer."""
    from api import tenants
    from billing import retention

    with context.transaction() as connection:
        tenants.require(connection, tenant_id)
        retention.keep(connection, tenant_id, days)
        record(connection, "retention.changed", tenant_id, content_days=days)
    show(Kept(tenant_id, days), as_json)


@retention.command()
@click.argument("tenant_id")
@click.option("--request", "request_id", help="Of this request.")
@click.option("--end-user", help="Of this end user's requests.")
@click.option("--everything", is_flag=True, help="Of all ended requests.")
@as_json
@click.pass_obj
def erase(
    context: CliContext,
    *,
    tenant_id: str,
    request_id: str | None,
    end_user: str | None,
    everything: bool,
    as_json: bool,
) -> None:
    """Erase prompts, outputs and token ids of ended requests; receipts and charges stay."""
    from api import tenants
    from billing import retention
    from billing.retention import Chosen

    if everything == bool(request_id or end_user):
        raise click.UsageError("say what to erase: --request, --end-user or --everything")
    with context.transaction() as connection:
        tenants.require(connection, tenant_id)
        count = retention.erase(connection, tenant_id, Chosen(request_id, end_user))
        record(connection, "content.erased", tenant_id, subject=request_id, requests=count)
    show(Erased(tenant_id, count), as_json)
