"""`dflash reconcile`: whether all books tell the same story."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from metering.wording import counted

if TYPE_CHECKING:
    from billing.reconciliation import Reconciliation


@click.command()
@click.option("--tenant", "tenant_id", metavar="ID", help="Only this tenant's.")
@click.option("--period", metavar="YYYY-MM", help="Only what belongs to this month.")
@click.option("--offline", is_flag=True, help="Do not ask the payment provider.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def reconcile(
    ctx: click.Context, tenant_id: str | None, period: str | None, offline: bool, as_json: bool
) -> None:
    """Compare engine, events, rated lines, ledger, receipts, invoices and Stripe; 1 if any differ.

    Stripe is asked where a key of it is configured.
    """
    import msgspec

    from billing import reconciliation
    from billing.reconciliation import Scope

    scope = Scope(tenant_id, period)
    provider = None if offline else ctx.obj.open_provider()
    if provider is None:
        with ctx.obj.snapshot() as connection:
            found = reconciliation.reconcile(connection, scope)
    else:
        with ctx.obj.database() as database:
            found = reconciliation.reconcile_with_provider(database, provider, scope)
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(found)))
    else:
        _show_reconciliation(found)
    if not found.is_clean:
        ctx.exit(1)


def _show_reconciliation(found: Reconciliation) -> None:
    from dataclasses import asdict

    for difference in found.differences:
        click.echo(
            f"{difference.subject}: {difference.check}: expected {difference.expected}, "
            f"found {difference.actual}"
        )
    compared = ", ".join(counted(count, name) for name, count in asdict(found.totals).items())
    click.echo(f"{counted(len(found.differences), 'differences')}; compared {compared}")
    if found.provider is not None:
        asked = asdict(found.provider)
        click.echo(
            "with the provider: " + ", ".join(counted(count, name) for name, count in asked.items())
        )
