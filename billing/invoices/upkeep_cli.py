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
    from billing.turns import turns
    from metering.database import snapshot, transaction

    count, tenant_id = 0, ""
    with context.database() as database, turns("reminders") as each:
        while True:
            with snapshot(database) as connection:
                found = dunning.next_due(connection, tenant_id)
            if found is None:
                break
            tenant_id = found
            with each.of(tenant_id):
                with transaction(database) as connection:
                    told = dunning.remind(connection, tenant_id)
                if told.is_news:
                    count += 1
                    what = ", ".join(told.numbers) or "nothing"
                    paused = "paused" if told.is_paused else "open"
                    click.echo(f"{tenant_id}: reminded of {what}; credit on account is {paused}")
        click.echo(counted(count, "tenants"))


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
