"""`dflash invoice issuer` and `dflash invoice customer`: who invoices name, and on what terms."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click

from metering.cli_context import CliContext
from metering.cli_types import NAME, Prose


@click.command("issuer")
@click.option("--name", type=NAME)
@click.option("--address", type=Prose(1000, in_lines=True), help="Lines, parted by newlines.")
@click.option("--tax-id", type=Prose(64))
@click.option("--series", help="What invoice numbers begin with.")
@click.option("--grace-hours", type=click.IntRange(0, 24 * 60), help="Wait for late events.")
@click.option("--due-days", type=click.IntRange(0, 365))
@click.option("--reminder-days", metavar="1,7,14", help="Days after the due day; none: empty.")
@click.option("--pause-days", type=click.IntRange(0, 3650), help="Then nothing more on account.")
@click.option("--no-pause", is_flag=True, help="Go on, however long an invoice is not paid.")
@click.pass_obj
def set_issuer(
    context: CliContext, /, grace_hours: int | None, no_pause: bool, **given: Any
) -> None:
    """Show who issues invoices, and on what terms; or change what is given."""
    import msgspec

    from billing.invoices import parties

    changes = {name: value for name, value in given.items() if value is not None}
    if grace_hours is not None:
        changes["grace_us"] = grace_hours * parties.HOUR_US
    if no_pause:
        if "pause_days" in changes:
            raise click.UsageError("either --pause-days or --no-pause")
        changes["pause_days"] = None
    with context.transaction() as connection:
        found = msgspec.structs.replace(parties.issuer(connection), **changes)
        if changes:
            parties.set_issuer(connection, found)
            context.record(connection, action="invoice.issuer_set", subject="issuer", **changes)
    click.echo(json.dumps(msgspec.to_builtins(found), indent=2, ensure_ascii=False))


@click.command("customer")
@click.argument("tenant_id")
@click.option("--name", type=NAME)
@click.option("--address", type=Prose(1000, in_lines=True), help="Lines, parted by newlines.")
@click.option("--tax-id", type=Prose(64))
@click.option("--tax-name", type=Prose(40))
@click.option("--tax-percent", help='Such as "19" or "8.875".')
@click.option(
    "--tax-from",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"]),
    help="From when on that tax is in force, in UTC.  [default: now; the first, from ever]",
)
@click.pass_obj
def set_customer(
    context: CliContext,
    /,
    tenant_id: str,
    tax_percent: str | None,
    tax_from: datetime | None,
    **given: Any,
) -> None:
    """Show what a tenant's invoices say of it, and its tax; or change what is given.

    A month is taxed by the rate that is in force at its last moment.
    """
    import msgspec

    from billing.invoices import parties

    changes = {name: value for name, value in given.items() if value is not None}
    from_us = None
    if tax_from is not None:
        if tax_percent is None:
            raise click.UsageError("--tax-from is of a --tax-percent")
        from_us = round(tax_from.replace(tzinfo=UTC).timestamp()) * 10**6
    with context.transaction() as connection:
        found = msgspec.structs.replace(parties.customer(connection, tenant_id), **changes)
        if tax_percent is not None:
            percent = parties.parse_percent(tax_percent)
            found = msgspec.structs.replace(found, tax_percent=percent)
            changes["tax_percent"] = tax_percent
            if tax_from is not None:
                changes["tax_from"] = tax_from.replace(tzinfo=UTC).isoformat()
        if changes:
            parties.set_customer(connection, tenant_id, found, from_us)
            context.record(
                connection,
                action="invoice.customer_set",
                subject=tenant_id,
                tenant_id=tenant_id,
                **changes,
            )
    click.echo(json.dumps(msgspec.to_builtins(found), indent=2, ensure_ascii=False))
