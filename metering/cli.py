"""`dflash units`: what the segmenter makes of a text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, BinaryIO

import click

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
def explain(file: BinaryIO, as_json: bool, cut: bool) -> None:
    """Show how FILE ("-" for standard input) divides into units, each with kind and bytes."""
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
                    ensure_ascii=False,
                )
            )
        return
    _paint(data, found)
    click.echo(f"{len(found)} units by {SEGMENTER}")


def _paint(data: bytes, found: list[Unit]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for unit in found:
        is_whole = unit.state.value == "complete"
        label = f"{unit.kind:>10} {unit.start:>6}-{unit.end:<6} {'' if is_whole else unit.state}"
        text = data[unit.start : unit.end].decode(errors="replace")
        shown = json.dumps(text, ensure_ascii=False)[1:-1]
        console.print(Text(label.ljust(36), style="cyan" if is_whole else "yellow"), Text(shown))
