"""`dflash credit` and `dflash tariff`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import IO, Any

import click

from metering.cli_context import CliContext
from metering.cli_types import REFERENCE

from_moment = click.option(
    "--effective-from",
    "start",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"]),
    help="From when on, in UTC.  [default: now]",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def credit() -> None:
    """Grant credit and show balances."""


@credit.command("grant")
@click.argument("tenant_id")
@click.argument("amount")
@click.option(
    "--reference",
    type=REFERENCE,
    help="Yours; the same again grants nothing.  [default: a new one]",
)
@as_json
@click.pass_obj
def grant_credit(
    context: CliContext, *, tenant_id: str, amount: str, reference: str | None, as_json: bool
) -> None:
    """Add prepaid credit, in the tenant's currency, that was paid for."""
    import uuid_utils

    from billing.ledger import balances, credits
    from billing.money import parse_nano

    cause = reference or f"cli-{uuid_utils.uuid7().hex}"
    nano = parse_nano(amount)
    with context.transaction() as connection:
        if credits.grant(connection, tenant_id, nano, cause):
            context.record(
                connection,
                action="credit.granted",
                subject=cause,
                tenant_id=tenant_id,
                amount_nano=nano,
            )
        balance = balances.balance(connection, tenant_id)
    _show_balance(tenant_id, balance, as_json)


@credit.command("show")
@click.argument("tenant_id")
@as_json
@click.pass_obj
def show_credit(context: CliContext, tenant_id: str, as_json: bool) -> None:
    """Show what a tenant may spend, and what live requests have reserved."""
    from billing.ledger import balances

    with context.snapshot() as connection:
        balance = balances.balance(connection, tenant_id)
    _show_balance(tenant_id, balance, as_json)


def _show_balance(tenant_id: str, balance: Any, as_json: bool) -> None:
    from billing.money import format_nano

    shown = {
        "tenant_id": tenant_id,
        "available": format_nano(balance.available_nano),
        "held": format_nano(balance.held_nano),
        "currency": balance.currency,
    }
    if as_json:
        click.echo(json.dumps(shown))
    else:
        click.echo("{tenant_id}: {available} {currency} available, {held} held".format(**shown))


@click.group()
def tariff() -> None:
    """Publish, assign and show tariffs."""


@tariff.command("list")
@as_json
@click.pass_obj
def list_tariffs(context: CliContext, as_json: bool) -> None:
    """List the published versions, and the tariffs that come with the gateway."""
    from billing import catalogue, tariffs
    from billing.receipt_documents import iso

    with context.snapshot() as connection:
        published = catalogue.versions(connection)
    names = {version.tariff for version in published}
    shipped = [name for name in tariffs.shipped() if name not in names]
    rows = []
    for version in published:
        start, end = version.effective_from_us, version.effective_to_us
        rows.append(
            {
                "id": version.id,
                "title": version.document.title,
                "currency": version.currency,
                "effective_from": iso(start),
                "effective_to": None if end is None else iso(end),
            }
        )
    if as_json:
        click.echo(json.dumps({"published": rows, "shipped": shipped}))
        return
    for row in rows:
        span = f"from {row['effective_from']} to {row['effective_to'] or 'further notice'}"
        click.echo(f"{row['id']:<20} {row['currency']}  {row['title']}, {span}")
    for name in shipped:
        click.echo(f"{name:<20} shipped, not published yet")


@tariff.command("show")
@click.argument("name")
@click.pass_obj
def show_tariff(context: CliContext, name: str) -> None:
    """Print a tariff as YAML: a version's id, or a shipped tariff's name."""
    from billing import catalogue, tariffs

    shipped = tariffs.shipped()
    if name in shipped:
        document = shipped[name]
    else:
        with context.snapshot() as connection:
            document = catalogue.version(connection, name).document
    click.echo(tariffs.to_yaml(document), nl=False)


@tariff.command("validate")
@click.argument("file", type=click.File("rb"))
def validate_tariff(file: IO[bytes]) -> None:
    """Check a tariff document, YAML or JSON, and say everything that is wrong with it."""
    document = _read_tariff(file)
    click.echo(f"valid: {document.name}, {document.currency}")


@tariff.command("publish")
@click.argument("file", type=click.File("rb"))
@from_moment
@click.pass_obj
def publish_tariff(context: CliContext, file: IO[bytes], start: datetime | None) -> None:
    """Put a document in force, as the next version of its tariff."""
    from billing import catalogue

    document = _read_tariff(file)
    with context.transaction() as connection:
        version = catalogue.publish(connection, document, _us(start))
        context.record(
            connection,
            action="tariff.published",
            subject=version.id,
            document_sha256=version.document_sha256,
            effective_from_us=version.effective_from_us,
        )
    click.echo(version.id)


@tariff.command("assign")
@click.argument("tenant_id")
@click.argument("name")
@from_moment
@click.pass_obj
def assign_tariff(context: CliContext, tenant_id: str, name: str, start: datetime | None) -> None:
    """Put a tenant on a tariff; what was admitted before keeps its version."""
    from billing import catalogue

    with context.transaction() as connection:
        catalogue.install_shipped(connection)
        start_us = _us(start)
        if start_us is None:
            start_us = catalogue.from_now(connection, tenant_id)
        catalogue.assign(connection, tenant_id, name, start_us)
        context.record(
            connection,
            action="tariff.assigned",
            subject=name,
            tenant_id=tenant_id,
            effective_from_us=start_us,
        )
    click.echo(f"{tenant_id} pays {name}")


@tariff.command("override")
@click.argument("tenant_id")
@click.argument("file", type=click.File("rb"))
@click.option("--base", help="Tariff to change.  [default: the one it is on]")
@from_moment
@click.pass_obj
def override_tariff(
    context: CliContext,
    *,
    tenant_id: str,
    file: IO[bytes],
    base: str | None,
    start: datetime | None,
) -> None:
    """Give a tenant its own prices: FILE holds the changes to a tariff's document."""
    from billing import overrides
    from billing.errors import InvalidTariff
    from billing.tariff_documents import load

    try:
        changes = load(file.read())
    except InvalidTariff as error:
        raise click.ClickException(str(error)) from None
    if not isinstance(changes, dict):
        raise click.ClickException("the changes must be a mapping, such as `output: {...}`")
    with context.transaction() as connection:
        version = overrides.override(connection, tenant_id, changes, _us(start), base=base)
        context.record(
            connection,
            action="tariff.overridden",
            subject=version.id,
            tenant_id=tenant_id,
            document_sha256=version.document_sha256,
            effective_from_us=version.effective_from_us,
        )
    click.echo(f"{tenant_id} pays {version.id}, made from {version.document.base}")


@tariff.command("preview")
@click.argument("file", type=click.File("rb"))
@click.option("--period", required=True, metavar="YYYY-MM", help="Which month.")
@click.option("--tenant", "tenant_id", help="Only this one.  [default: all who pay its currency]")
@as_json
@click.pass_obj
def preview_tariff(
    context: CliContext, *, file: IO[bytes], period: str, tenant_id: str | None, as_json: bool
) -> None:
    """Say what a past month would have cost under a document, rating every request again."""
    from sqlalchemy import select

    from billing.money import format_nano
    from billing.preview import preview
    from metering.tables import tenants

    draft = _read_tariff(file)
    with context.snapshot() as connection:
        paying = select(tenants.c.id).where(tenants.c.currency == draft.currency)
        chosen = (
            list(connection.scalars(paying.order_by(tenants.c.id)))
            if tenant_id is None
            else [tenant_id]
        )
        if not chosen:
            raise click.ClickException(f"no tenant pays {draft.currency}")
        for each in chosen:
            found = preview(connection, each, period, draft)
            shown = {
                "tenant_id": each,
                "period": period,
                "requests": found.requests,
                "total": format_nano(found.total_nano),
                "booked_total": format_nano(found.booked_nano),
                "difference": format_nano(found.total_nano - found.booked_nano),
                "currency": found.currency,
            }
            text = "{tenant_id}: {total} {currency} instead of {booked_total} ({difference})"
            click.echo(json.dumps(shown) if as_json else text.format(**shown))


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.replace(tzinfo=UTC).timestamp()) * 10**6


def _read_tariff(file: IO[bytes]) -> Any:
    from billing import tariffs
    from billing.errors import InvalidTariff

    try:
        return tariffs.parse(file.read())
    except InvalidTariff as error:
        raise click.ClickException(
            "\n  ".join(("the tariff is not valid:", *error.errors))
        ) from None
