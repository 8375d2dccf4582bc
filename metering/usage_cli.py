"""`dflash usage`: rollups by minute, hour and day, and how fast reported usage is taken in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from metering.cli_context import CliContext

if TYPE_CHECKING:
    from sqlalchemy import Connection

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def usage() -> None:
    """Show usage by minute, hour or day, and make these rollups anew."""


@usage.command()
@click.option("--tenant", "tenant_id", help="Only this tenant's.")
@click.pass_obj
def rebuild(context: CliContext, tenant_id: str | None) -> None:
    """Make the rollups anew from the summaries of requests."""
    from sqlalchemy import select

    from metering import rollups
    from metering.database import transaction
    from metering.tables import tenants

    rows = 0
    with context.database() as database:
        with transaction(database) as connection:
            if tenant_id is not None:
                _require(connection, tenant_id)
            known = list(connection.scalars(select(tenants.c.id).order_by(tenants.c.id)))
        for each in known if tenant_id is None else [tenant_id]:
            with transaction(database) as connection:
                rows += rollups.rebuild(connection, each)
    click.echo(f"rollups made anew: {rows}")


@usage.command()
@click.argument("tenant_id")
@click.option("--width", type=click.Choice(["minute", "hour", "day"]), default="day")
@click.option("--days", type=click.IntRange(1, 4000), default=30, show_default=True)
@as_json
@click.pass_obj
def show(context: CliContext, *, tenant_id: str, width: str, days: int, as_json: bool) -> None:
    """Show a tenant's usage; buckets are UTC's, and those without any are absent."""
    import msgspec

    from metering import clock, rollups

    with context.transaction() as connection:
        _require(connection, tenant_id)
        while rollups.refresh(connection, tenant_id):
            pass
        now = clock.now_us()
        found = rollups.read(connection, tenant_id, width, now - days * 86_400 * 10**6, now + 1)
    if as_json:
        click.echo(msgspec.json.encode({"items": found}))
        return
    for row in found:
        joules = "-" if row.energy_uj is None else f"{row.energy_uj / 10**6:.1f}"
        click.echo(
            f"{_time(row.start_us)}  {row.model:<28} {row.requests:>8} requests"
            f" {row.input_tokens:>12} in {row.output_tokens:>12} out"
            f" {joules:>12} J {row.energy_class}"
        )


@usage.command("bench")
@click.option("--events", type=click.IntRange(1000, 10**7), default=100_000, show_default=True)
@click.option("--batch", type=click.IntRange(1, 10_000), default=1000, show_default=True)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where a SQLite database for the measurement is made.  [default: a temporary folder]",
)
@click.option("--postgresql", "url", help="Measure on this empty PostgreSQL database instead.")
@as_json
def bench(*, events: int, batch: int, folder: Path | None, url: str | None, as_json: bool) -> None:
    """Measure intake against the same database's raw batched inserts of the same rows.

    The database it is given must be empty: it is migrated, filled and left for inspection.
    """
    import importlib

    from metering.ingestion.benchmark import measure

    migrate = importlib.import_module("api.migrate").upgrade
    figures = measure(migrate, events=events, batch=batch, folder=folder, url=url)
    if as_json:
        click.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        click.echo(f"{name:<28} {value}")


def _require(connection: Connection, tenant_id: str) -> None:
    from metering.queries import tenant

    if tenant(connection, tenant_id) is None:
        raise click.ClickException(f"no tenant {tenant_id}")


def _time(at_us: int) -> str:
    from datetime import UTC, datetime

    return f"{datetime.fromtimestamp(at_us // 10**6, UTC):%Y-%m-%dT%H:%MZ}"
