"""The gateway's own commands: serving, the schema, tenants, keys and the first operator."""

from __future__ import annotations

import errno
import gc
import socket
from typing import Any

import click

from api.admin.budget_cli import budget, limit, project
from api.admin.cli import admin, key, tenant
from api.admin.retention_cli import retention
from api.admin.spending_cli import grant, refund, terms
from engine.options import engine_parameters, given_parameters
from metering.cli_context import CliContext

__all__ = [
    "admin",
    "budget",
    "grant",
    "key",
    "limit",
    "migrate",
    "project",
    "refund",
    "retention",
    "serve",
    "tenant",
    "terms",
]


@click.command()
@click.option("--host", help="Address to listen on.  [default: $DFLASH_HOST, 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="[default: $DFLASH_PORT, 8000]")
@click.option("--model", help="A known model's name or a .dfm file.  [default: $DFLASH_MODEL]")
@engine_parameters
@click.pass_obj
def serve(
    obj: CliContext,
    /,
    host: str | None,
    port: int | None,
    model: str | None,
    profile: str | None,
    **options: Any,
) -> None:
    """Run the gateway and, in a process of its own, the engine. Ends on SIGINT or SIGTERM."""
    import uvicorn

    from api.app import create_app
    from api.gateway import Gateway
    from api.logs import configure_logs
    from api.settings import Settings

    settings = Settings.read(
        home=obj.home,
        database_url=obj.database_url,
        host=host,
        port=port,
        model=model,
        profile=profile,
        engine=given_parameters(options),
    )
    configure_logs(settings.log_level)
    _require_port(settings.host, settings.port)
    gateway = Gateway(settings)
    try:
        gateway.start()  # here, so that what keeps it from starting is one line and no traceback
    except BaseException:
        gateway.close()
        raise
    gc.freeze()  # what was imported stays: full collections need not walk it while streams wait
    uvicorn.run(
        create_app(settings, gateway),
        host=settings.host,
        port=settings.port,
        log_config=None,
        lifespan="on",
        timeout_graceful_shutdown=settings.drain_s,
    )


@click.command()
@click.pass_obj
def migrate(obj: CliContext) -> None:
    """Create the database or bring it to this release's schema. Idempotent."""
    from api.migrate import upgrade

    state = upgrade(obj.database_url)
    click.echo(f"the database is at {state.current}")


def _require_port(host: str, port: int) -> None:
    """Raise ClickException where the port is taken, which is heard of too late with a model loaded.

    What else is wrong with an address is said by who listens on it.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise click.ClickException(
                    f"port {port} of {host} is taken: by another gateway? --port takes another"
                ) from None
