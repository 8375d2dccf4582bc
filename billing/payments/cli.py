"""`dflash payments`: who pays through the provider, and what it has still to be told."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from metering.cli_context import CliContext
from metering.cli_types import COUNT_MAX, EMAIL, Word

if TYPE_CHECKING:
    from billing.payments.provider import Provider


def _provider(context: CliContext) -> Provider:
    from billing.errors import PaymentsDisabled

    found: Provider | None = context.open_provider()
    if found is None:
        raise PaymentsDisabled("no payment provider is configured: set DFLASH_STRIPE_API_KEY")
    return found


@click.group()
def payments() -> None:
    """Let tenants pay through Stripe, push what waits, and see what was refused."""


@payments.command("enrol")
@click.argument("tenant_id")
@click.argument("email", type=EMAIL)
@click.pass_obj
def enrol_tenant(context: CliContext, tenant_id: str, email: str) -> None:
    """Let a tenant pay through the provider from now on."""
    from billing.ledger.balances import currency_of
    from billing.payments import collection

    with context.transaction() as connection:
        currency = currency_of(connection, tenant_id)
        enrolled = collection.enrol(connection, tenant_id, email, currency)
        if enrolled:
            context.record(
                connection, action="payments.enrolled", subject=tenant_id, tenant_id=tenant_id
            )
        known = collection.account(connection, tenant_id)
    if not enrolled and known is not None and known.email != email:
        raise click.ClickException(f"{tenant_id} pays through the provider already: {known.email}")
    click.echo(f"{tenant_id} pays through the provider")


@payments.command("meter")
@click.argument("tenant_id")
@click.argument("measure", type=click.Choice(["requests", "input_tokens", "output_tokens"]))
@click.argument("event_name", type=Word(r"[!-~]{1,100}", "1 to 100 letters and signs"))
@click.pass_obj
def meter_tenant(context: CliContext, tenant_id: str, measure: str, event_name: str) -> None:
    """Tell a meter of the provider's, by its event name, what a tenant uses from this hour on."""
    from billing.payments import meters

    with context.transaction() as connection:
        begun = meters.begin(connection, tenant_id, measure, event_name)
        known = meters.event_name(connection, tenant_id, measure)
        if begun:
            context.record(
                connection,
                action="payments.metered",
                subject=event_name,
                tenant_id=tenant_id,
                measure=measure,
            )
    if known != event_name:
        raise click.ClickException(f"{known} is told the {measure} of {tenant_id} already")
    click.echo(f"{event_name} is told the {measure} of {tenant_id}")


@payments.command("push")
@click.pass_obj
def push_rows(context: CliContext) -> None:
    """Send what is due now. A running gateway does so by itself."""
    from billing.payments import meters, outbox, recharging

    provider = _provider(context)
    with context.database() as database:
        recharging.recharge(database)
        meters.queue(database)
        click.echo(f"{outbox.push(database, provider)} sent")


@payments.command("waiting")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def show_waiting(ctx: click.Context, as_json: bool) -> None:
    """Show what waits or was refused, and why; exit status 1 if anything was refused."""
    from dataclasses import asdict

    from billing.payments import outbox

    with ctx.obj.snapshot() as connection:
        found = outbox.open_rows(connection)
    for row in found:
        if as_json:
            click.echo(json.dumps(asdict(row)))
        else:
            click.echo(
                f"{row.seq}  {row.tenant_id}  {row.action} {row.subject}  {row.state}, "
                f"{row.attempts} attempts  {row.error or ''}".rstrip()
            )
    if any(row.state == "refused" for row in found):
        ctx.exit(1)


@payments.command("retry")
@click.argument("seq", type=click.IntRange(1, COUNT_MAX))
@click.pass_obj
def retry_row(context: CliContext, seq: int) -> None:
    """Let a refused row go out again, once its cause was mended."""
    from billing.payments import refusals

    with context.transaction() as connection:
        if not refusals.retry(connection, seq):
            raise click.ClickException(f"{seq} was not refused")
        context.record(connection, action="payments.retried", subject=str(seq))
    click.echo(f"{seq} goes out again")


@payments.command("drop")
@click.argument("seq", type=click.IntRange(1, COUNT_MAX))
@click.pass_obj
def drop_row(context: CliContext, seq: int) -> None:
    """Let a refused row go, which was settled otherwise. A refund's credit is given back."""
    from billing.payments import refusals

    with context.transaction() as connection:
        if not refusals.drop(connection, seq):
            raise click.ClickException(f"{seq} was not refused")
        context.record(connection, action="payments.dropped", subject=str(seq))
    click.echo(f"{seq} is told no more")


@payments.command("book")
@click.argument("kind", type=click.Choice(["payment", "invoice", "refund", "dispute"]))
@click.argument("provider_id", type=Word(r"[!-~]{1,255}", "1 to 255 letters and signs"))
@click.pass_obj
def book_object(context: CliContext, kind: str, provider_id: str) -> None:
    """Take in what moved at the provider and is not in our books; again, it changes nothing."""
    from billing.payments import booking

    provider = _provider(context)
    with context.database() as database:
        effect = booking.looked_up(database, provider, kind, provider_id)
    with context.transaction() as connection:
        outcome = effect(connection)
        context.record(
            connection, action="payments.booked", subject=provider_id, kind=kind, outcome=outcome
        )
    click.echo(f"{provider_id}: {outcome}")
