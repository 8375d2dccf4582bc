"""A text with its semantic units marked in colour, for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from metering.events import UnitState
from metering.semantic import Unit

COLOURS = {
    "sentence": "white",
    "heading": "bright_white",
    "list_item": "bright_cyan",
    "table_row": "bright_blue",
    "statement": "bright_green",
    "header": "bright_magenta",
    "comment": "bright_black",
    "member": "cyan",
    "element": "cyan",
    "value": "cyan",
    "bracket": "magenta",
    "line": "green",
}
FRAGMENT = "bright_yellow"
GROUNDS = ("grey15", "grey30")  # of one unit and the next, so that neighbours can be told apart


def style(unit: Unit) -> str:
    """The colour of a unit: by its kind, or that of fragments."""
    if unit.state is not UnitState.COMPLETE:
        return FRAGMENT
    return COLOURS.get(unit.kind, "white")


def painted(data: bytes, units: Sequence[Unit]) -> Text:
    """The whole text, each unit on a ground of its own. What a terminal might obey is escaped."""
    text = Text()
    for index, unit in enumerate(units):
        shown = escaped(data[unit.start : unit.end].decode(errors="replace"), keep="\n\t")
        text.append(shown, style=f"{style(unit)} on {GROUNDS[index % 2]}")
    return text


def escaped(text: str, keep: str = "") -> str:
    """The text with everything that has no shape of its own written as an escape."""
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode()
        for char in text
    )
