"""`dflash invoice remind|recount`: by hand what a running gateway does by itself."""

from __future__ import annotations

import click

from metering.cli_context import CliContext
from metering.wording import counted


@click.command("remind")
@click.pass_obj
def remind_customers(context: CliContext) -> None:
    """Remind of what is due, and pause or resume credit on account."""
    from billing.invoices import dunning

    with context.database() as database:
        told = dunning.run(database)
    for each in told:
        what = ", ".join(each.numbers) or "nothing"
        paused = "paused" if each.is_paused else "open"
        click.echo(f"{each.tenant_id}: reminded of {what}; credit on account is {paused}")
    click.echo(counted(len(told), "tenants"))


@click.command("recount")
@click.pass_obj
def recount_charges(context: CliContext) -> None:
    """Add up anew what pages show of charges by the hour. Invoices are not made of it."""
    from billing import charged_hours
    from metering import clock
    from metering.database import transaction

    with context.database() as database:
        with transaction(database) as connection:
            charged_hours.rebuild(connection)
        hours = charged_hours.count_all(database, clock.now_us())
    click.echo(f"{counted(hours, 'hours')} counted")
