"""`dflash pull`, `dflash convert`, `dflash models`: model files, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from engine.dfm.catalogue import CATALOGUE, DEFAULT_MODEL, InstalledModel, entry, installed

# what `dflash` puts into the click context: it has a `home`
Context = Any


@click.command()
@click.argument("name", default=DEFAULT_MODEL)
@click.pass_obj
def pull(context: Context, name: str) -> None:
    """Fetch a known model and convert it; does nothing when it is at hand."""
    from engine.dfm.pulling import pull as fetch

    chosen = entry(name)
    with _progress() as report:
        path = fetch(chosen, context.home, report)
    click.echo(f"{chosen.title} ({chosen.licence}) is at {path}")


@click.command()
@click.option("--input", "source", required=True, type=click.Path(path_type=Path), help="A GGUF.")
@click.option("--output", "target", required=True, type=click.Path(path_type=Path))
@click.option(
    "--quant-type",
    default="q4",
    show_default=True,
    help="q4 or q8 (blocks of 32), or f32; q5_k_m_bias_aware and the like check biases, too.",
)
@click.option("--rope-theta", type=float, help="Overrides the file's; required where it has none.")
def convert(source: Path, target: Path, quant_type: str, rope_theta: float | None) -> None:
    """Convert a GGUF file to .dfm."""
    from engine.dfm.conversion import convert_gguf
    from engine.dfm.header import read_header

    with _progress() as report:
        convert_gguf(
            source,
            target,
            quant_type=quant_type,
            rope_theta=rope_theta,
            progress=lambda done, total: report("converting", done, total),
        )
    click.echo(f"{target}: {read_header(target).checksum}")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON document.")
@click.pass_obj
def models(context: Context, as_json: bool = False) -> None:
    """List the models at hand and the ones that can be fetched."""
    at_hand = installed(context.home)
    missing = [known for name, known in CATALOGUE.items() if name not in {m.name for m in at_hand}]
    if as_json:
        import msgspec

        document = {
            "installed": [_facts(model) for model in at_hand],
            "available": [
                {"name": known.name, "title": known.title, "licence": known.licence}
                for known in missing
            ],
        }
        click.echo(msgspec.json.encode(document).decode())
        return
    for model in at_hand:
        facts = _facts(model)
        state = facts.get("fault") or (
            f"{facts['architecture']}, {facts['quantisation']}, context {facts['context_length']}"
        )
        click.echo(f"{model.name:<28} at hand    {state}")
    for known in missing:
        click.echo(
            f"{known.name:<28} available  {known.title}, {known.licence}: dflash pull {known.name}"
        )


def _facts(model: InstalledModel) -> dict[str, Any]:
    facts: dict[str, Any] = {"name": model.name, "path": str(model.path)}
    if model.header is None:
        return {**facts, "fault": model.fault}
    card = model.header.model
    return {
        **facts,
        "checksum": model.header.checksum,
        "architecture": card.architecture.family,
        "quantisation": card.quantisation,
        "context_length": card.architecture.context_length,
        "licence": card.licence,
        "bytes": model.header.data_offset + model.header.data_bytes,
    }


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int | None], None]]:
    """Show one bar per stage on stderr; a line per stage where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description:<36}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, Any] = {}

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
                if not console.is_terminal:
                    click.echo(stage, err=True)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
