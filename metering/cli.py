"""`dflash units`: what the segmenter makes of a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, BinaryIO

import click

from metering.wording import counted

if TYPE_CHECKING:
    from metering.semantic import Unit

CHUNK_BYTES = 64 * 1024


@click.group()
def units() -> None:
    """Show the semantic units of a text."""


@units.command()
@click.argument("file", type=click.File("rb"))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for each unit.")
@click.option(
    "--cut",
    is_flag=True,
    help="Take the text as cut off at its end, by a length limit say, not as ended by itself.",
)
@click.option("--text", "as_text", is_flag=True, help="Paint the units over the text itself.")
def explain(file: BinaryIO, as_json: bool, cut: bool, as_text: bool) -> None:
    """Show how FILE ("-" for standard input) divides into units, each with kind and bytes."""
    if as_json and as_text:
        raise click.UsageError("--json and --text are two ways to show the units: take one")
    from metering.semantic import SEGMENTER, Segmenter

    segmenter = Segmenter()
    data = b""
    found: list[Unit] = []
    while chunk := file.read(CHUNK_BYTES):
        data += chunk
        found += segmenter.feed(chunk)
    found += segmenter.finish(stopped=not cut)
    if as_json:
        for index, unit in enumerate(found):
            click.echo(
                json.dumps(
                    {
                        "index": index,
                        "kind": unit.kind,
                        "state": unit.state.value,
                        "byte_start": unit.start,
                        "byte_end": unit.end,
                        "text": data[unit.start : unit.end].decode(errors="replace"),
                        "segmenter": SEGMENTER,
                    },
                    ensure_ascii=True,  # a terminal obeys what is not
                )
            )
        return
    from rich.console import Console
    from rich.text import Text

    from metering.unit_painting import escaped, painted, style

    console = Console(highlight=False, soft_wrap=True)
    if as_text:
        console.print(painted(data, found), end="" if data.endswith(b"\n") else "\n")
        kinds = dict.fromkeys((unit.kind, style(unit)) for unit in found)
        console.print(*(Text(kind, style=colour) for kind, colour in kinds))
    else:
        for unit in found:
            state = "" if unit.state.value == "complete" else unit.state.value
            label = f"{unit.kind:>10} {unit.start:>6}-{unit.end:<6} {state}"
            text = escaped(data[unit.start : unit.end].decode(errors="replace"))
            console.print(Text(f"{label:<36} {text}", style=style(unit)))
    console.print(f"{counted(len(found), 'units')} by {SEGMENTER}")
