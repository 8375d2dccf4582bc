"""`dflash export`: charges, usage and receipts as files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from metering.cli_context import CliContext

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from billing.exports.downloads import Download
    from billing.exports.records import Chosen

END_OF_TIME_US = 2**63 - 1
FORMATS = ("jsonl", "csv")

_tenant = click.option("--tenant", "tenant_id", help="Only this one's.  [default: all]")
_output = click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="File.  [default: stdout]"
)
_MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%SZ"])


def _range(command: Callable[..., None]) -> Callable[..., None]:
    for name, said in (("end", "First moment after"), ("start", "First moment")):
        command = click.option(f"--{name}", type=_MOMENT, help=f"{said}, in UTC.  [default: any]")(
            command
        )
    return command


@click.group("export")
def export() -> None:
    """Write charges as FOCUS data, and usage and receipts as records."""


@export.command("focus")
@click.option("--period", required=True, metavar="YYYY-MM", help="Which month.")
@click.option(
    "--format", "form", type=click.Choice(["csv", "parquet"]), default="csv", show_default=True
)
@_tenant
@_output
@click.pass_obj
def export_focus(
    context: CliContext, *, period: str, form: str, tenant_id: str | None, output: Path | None
) -> None:
    """Write every charge of a month in FOCUS 1.2; those of an invoice add up to it."""
    from sqlalchemy import select

    from api import projects
    from billing.exports import downloads
    from metering.database import snapshot
    from metering.tables import tenants

    if form == "parquet" and output is None and sys.stdout.isatty():
        raise click.UsageError("Parquet is nothing for a terminal: give --output FILE")
    with context.database() as database:
        if tenant_id is None:
            with snapshot(database) as connection:
                chosen = list(connection.scalars(select(tenants.c.id).order_by(tenants.c.id)))
        else:
            chosen = [tenant_id]
        made = downloads.focus_file(
            database, chosen, period, downloads.FocusForm(form), projects.names
        )
        _write(made, output)


@export.command("usage")
@click.option("--format", "form", type=click.Choice(FORMATS), default="jsonl", show_default=True)
@_range
@_tenant
@_output
@click.pass_obj
def export_usage(
    context: CliContext, /, *, form: str, tenant_id: str | None, output: Path | None, **span: Any
) -> None:
    """Write what each request used and cost, oldest first."""
    from api import projects
    from billing.exports import downloads

    with context.database() as database:
        chosen = _chosen(database, tenant_id, **span)
        form_ = downloads.RecordForm(form)
        _write(downloads.usage_file(database, chosen, form_, projects.names), output)


@export.command("receipts")
@click.option("--format", "form", type=click.Choice(FORMATS), default="jsonl", show_default=True)
@_range
@_tenant
@_output
@click.pass_obj
def export_receipts(
    context: CliContext, /, *, form: str, tenant_id: str | None, output: Path | None, **span: Any
) -> None:
    """Write signed receipts as JSON Lines, or their lines as CSV, oldest first."""
    from billing.exports import downloads

    with context.database() as database:
        chosen = _chosen(database, tenant_id, **span)
        _write(downloads.receipts_file(database, chosen, downloads.RecordForm(form)), output)


def _chosen(
    database: Engine, tenant_id: str | None, start: datetime | None, end: datetime | None
) -> Chosen:
    from api import tenants
    from billing.exports.records import Chosen
    from metering.database import snapshot

    if tenant_id is not None:
        with snapshot(database) as connection:
            tenants.require(connection, tenant_id)
    start_us = 0 if start is None else _us(start)
    end_us = END_OF_TIME_US if end is None else _us(end)
    if start_us >= end_us:
        raise click.UsageError("--start is not before --end")
    return Chosen(tenant_id, start_us, end_us)


def _us(at: datetime) -> int:
    return int(at.replace(tzinfo=UTC).timestamp()) * 10**6


def _write(made: Download, output: Path | None) -> None:
    if output is None:
        for piece in made.pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
        return
    with output.open("wb") as file:
        for piece in made.pieces:
            file.write(piece)
    click.echo(f"{output}: {output.stat().st_size} bytes", err=True)
