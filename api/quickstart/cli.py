"""`dflash quickstart`: pull, migrate, serve, ask once, verify the receipt, stay up."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

import click
from rich.console import Console

from api import migrate
from api.quickstart import demo, server
from api.quickstart.client import ask
from api.quickstart.demo import Demo
from api.quickstart.receipt_page import render
from api.quickstart.server import QuickstartFailed, Server
from api.settings import Settings
from api.tenure import Tenure
from billing.errors import InvalidReceipt
from billing.receipts import verify
from engine.dfm.catalogue import resolve
from engine.errors import ModelNotFound
from engine.kernels.cpu.compilation import CannotCompile, compiled_library
from metering.database import open_database

QUESTION = "Write a Python function that reverses a string."
TERMINATED = 143  # 128 + SIGTERM, as a shell reports it


@click.command()
@click.option("--once", is_flag=True, help="Exit after the receipt; status 0 only if it verifies.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print the receipt as JSON, the last line of stdout."
)
@click.option("--port", type=click.IntRange(0, 65535), help="Port.  [default: $DFLASH_PORT, 8000]")
@click.option("--model", help="Name or path of the model.  [default: $DFLASH_MODEL]")
@click.pass_context
def quickstart(
    ctx: click.Context, once: bool, as_json: bool, port: int | None, model: str | None
) -> None:
    """Fetch a model, serve it, and show one signed receipt.

    Everything it makes is kept under the home, so the next run starts in seconds.
    """
    settings = Settings.read(
        home=ctx.obj.home, database_url=ctx.obj.database_url, port=port, model=model
    )
    progress = Console(stderr=True, highlight=False)
    page = progress if as_json else Console(highlight=False)
    signal.signal(signal.SIGTERM, _terminate)
    try:
        _demonstrate(settings, progress, page, once=once, as_json=as_json)
    except KeyboardInterrupt:
        progress.print("stopped")


def _demonstrate(
    settings: Settings,
    progress: Console,
    page: Console,
    *,
    once: bool,
    as_json: bool,
) -> None:
    settings.home.mkdir(parents=True, exist_ok=True)
    _have_model(settings, progress)
    _have_kernels(settings, progress)
    migrate.upgrade(settings.resolved_database_url)
    _be_alone(settings.resolved_database_url)
    tenant = demo.prepare(settings.resolved_database_url, settings.home / "demo_key")
    port = server.free_port(settings.host, settings.port)
    if settings.port not in (0, port):
        progress.print(f"port {settings.port} is taken: using {port}")
    with server.serving(settings, port) as running:
        with _stage(progress, "starting the gateway") as news:
            server.await_ready(running, lambda waited_s: news(f"{waited_s:.0f} s"))
        with _stage(progress, "asking the model") as news:
            answer = ask(running.url, tenant.key, QUESTION, lambda tokens: news(f"{tokens} tokens"))
        envelope = answer.generation["receipt"]
        try:
            verify(envelope, answer.keys)
        except InvalidReceipt as error:
            raise QuickstartFailed(f"the receipt does not verify: {error}") from error
        page.print(render(QUESTION, answer.generation))
        if as_json:
            click.echo(json.dumps(envelope, separators=(",", ":")))
            sys.stdout.flush()
        if not once:
            _welcome(progress if as_json else page, running, tenant)
            running.wait()


@contextmanager
def _stage(progress: Console, text: str) -> Iterator[Callable[[str], None]]:
    """Show a step that takes a while: a spinner that tells news, a line where no terminal is."""
    if not progress.is_terminal:
        progress.print(text)
        yield lambda _news: None
        return
    with progress.status(text) as status:
        yield lambda news: status.update(f"{text} ({news})")


def _have_model(settings: Settings, progress: Console) -> None:
    try:
        resolve(settings.home, settings.model)
    except ModelNotFound:
        progress.print(f"fetching {settings.model}; this happens once")
        # A process of its own: converting a model takes memory that the gateway needs next.
        done = subprocess.run(
            [
                *(sys.executable, "-m", "dflash", "--home", str(settings.home)),
                *("pull", settings.model),
            ],
            stdout=sys.stderr,
            check=False,
        )
        if done.returncode != 0:
            raise QuickstartFailed(f"{settings.model} could not be fetched") from None


def _have_kernels(settings: Settings, progress: Console) -> None:
    """Compile what the engine would otherwise compile out of sight; it does without as well."""
    config = settings.engine_config()
    if config.device != "cpu" or config.backend == "fp32":
        return
    with suppress(CannotCompile), _stage(progress, "making the CPU kernels"):
        compiled_library()


def _be_alone(database_url: str) -> None:
    """Raise AlreadyServed while another gateway serves the database; ours will check again."""
    database = open_database(database_url)
    tenure = Tenure(database)
    try:
        tenure.take()
    finally:
        tenure.release()
        database.dispose()


def _welcome(page: Console, running: Server, tenant: Demo) -> None:
    body = json.dumps({"prompt": "def fibonacci(n):", "max_tokens": 64})
    curl = (
        f"curl -s {running.url}/generate -H 'authorization: Bearer {tenant.key}'"
        f" -H 'content-type: application/json' -d {shlex.quote(body)}"
    )
    page.print()
    page.print(f"[bold]The gateway is up[/bold] at {running.url}; Ctrl-C stops it.")
    for name, path in (
        ("dashboard", "/dashboard"),
        ("API docs", "/docs"),
        ("metrics", "/metrics"),
    ):
        page.print(f"  {name:<10} {running.url}{path}")
    page.print(f"  {'demo key':<10} {tenant.key}", soft_wrap=True)
    page.print("  The dashboard shows the tenant's page to this key, and the operator's page to")
    page.print("  the key that `dflash admin bootstrap` prints.")
    page.print()
    page.print(curl, soft_wrap=True, markup=False)


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(TERMINATED)
