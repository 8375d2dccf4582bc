"""`dflash measure`: how fast the books are kept, and what keeping them costs the engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from metering.cli_context import CliContext

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
an_empty_database = click.option(
    "--database-url",
    help="An empty database, or one that such a run filled.  [default: SQLite in a scratch folder]",
)
PROMPTS = (
    "Explain how a combustion engine works, step by step.",
    "Write a Python function that merges two sorted lists.",
    "What are the causes of the French Revolution?",
    "Give me a recipe for a vegetable soup, with the amounts.",
    "Describe the water cycle to a child.",
    "List ten facts about the planet Mars.",
    "Write a short story about a lighthouse keeper.",
    "How does a relational database execute a join?",
)


@click.group()
def measure() -> None:
    """Measure rating, the tenant's page, and what metering and billing cost the engine."""


@measure.command("rating")
@click.option("--requests", type=click.IntRange(100), default=20_000, show_default=True)
@as_json
def measure_rating(*, requests: int, as_json: bool) -> None:
    """How many lines one core rates in a second."""
    from api.measurement import rating

    _show(rating.measure(requests=requests), as_json)


@measure.command("page")
@click.option("--requests", type=click.IntRange(1000), default=100_000, show_default=True)
@click.option("--tenants", type=click.IntRange(1), default=10, show_default=True)
@click.option("--reads", type=click.IntRange(1), default=20, show_default=True)
@an_empty_database
@as_json
def measure_page(
    *, requests: int, tenants: int, reads: int, database_url: str | None, as_json: bool
) -> None:
    """How long all queries of the tenant's first page take, over a whole month."""
    from api.measurement import page

    found = page.measure(requests=requests, tenants=tenants, reads=reads, database_url=database_url)
    _show(found, as_json)


@measure.command("overhead")
@click.option("--concurrency", type=click.IntRange(1), default=1, show_default=True)
@click.option("--requests", type=click.IntRange(1), default=8, show_default=True, help="A run.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--pairs", type=click.IntRange(2), default=6, show_default=True)
@click.option("--model", help="A known model's name or a .dfm file.  [default: $DFLASH_MODEL]")
@an_empty_database
@as_json
@click.pass_obj
def measure_overhead(
    context: CliContext,
    *,
    concurrency: int,
    requests: int,
    max_tokens: int,
    pairs: int,
    model: str | None,
    database_url: str | None,
    as_json: bool,
) -> None:
    """What metering and billing take of the engine's rate, and add before the first token.

    Runs with the books and without them, in turns; the bounds hold with 95 % confidence.
    """
    from api.logs import configure_logs
    from api.measurement import overhead
    from api.settings import Settings

    configure_logs("warning")
    found = overhead.measure(
        Settings.read(home=context.home, model=model),
        [f"{PROMPTS[number % len(PROMPTS)]} ({number})" for number in range(requests)],
        concurrency=concurrency,
        max_tokens=max_tokens,
        pairs=pairs,
        database_url=database_url,
    )
    _show(found, as_json)


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found))
        return
    for name, value in found.items():
        click.echo(f"{name:<32} {value}")
