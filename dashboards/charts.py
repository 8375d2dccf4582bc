"""A chart as plain data: what the script draws, and the table that says the same in exact figures.

Values are decimal strings, or null where there is nothing to say. The script turns them into
floats to draw them; the table beside the drawing prints them as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class ChartKind(StrEnum):
    """How the series share the plot. Grouped bars are for what must not be added up."""

    STACKED_BARS = "stacked_bars"
    GROUPED_BARS = "grouped_bars"
    STACKED_ROWS = "stacked_rows"  # lying down: for few categories with long names
    LINES = "lines"


@dataclass(frozen=True, slots=True)
class Series:
    """One row of values; `colour` names a custom property of the style sheet (`--chart-...`)."""

    label: str
    colour: str
    values: tuple[str | None, ...]
    dashed: bool = False  # a bound, not a measurement


@dataclass(frozen=True, slots=True)
class Chart:
    """Series over common categories. `unit` is said on the axis and in the table's head."""

    id: str
    title: str
    kind: ChartKind
    unit: str
    category: str  # what the categories are: "Day", "Score"
    categories: tuple[str, ...]
    series: tuple[Series, ...]

    @property
    def empty(self) -> bool:
        """Whether nothing was measured at all; a zero is a value, a bound is none."""
        measured = (series for series in self.series if not series.dashed)
        return all(value is None for series in measured for value in series.values)

    def to_wire(self) -> dict[str, Any]:
        """What `static/charts.js` reads."""
        return {
            "kind": self.kind.value,
            "unit": self.unit,
            "categories": self.categories,
            "series": [
                {
                    "label": series.label,
                    "colour": series.colour,
                    "values": series.values,
                    "dashed": series.dashed,
                }
                for series in self.series
            ],
        }


# One colour per component wherever it is drawn, so that pages can be compared at a glance.
COMPONENT_COLOURS = {
    "input": "--chart-1",
    "output": "--chart-2",
    "review": "--chart-3",
    "energy": "--chart-4",
    "information": "--chart-5",
    "blocks": "--chart-6",
    "request": "--chart-7",
    "adjustment": "--chart-8",
}
OTHER_COLOUR = "--chart-9"

TIER_COLOURS = {
    "standard": "--tier-standard",
    "reduced": "--tier-reduced",
    "review": "--tier-review",
}
ENERGY_COLOURS = {"measured": "--chart-4", "estimated": "--chart-7", "reported": "--chart-1"}


def stack(
    rows: Sequence[tuple[str, str, str]], categories: Sequence[str], colours: dict[str, str]
) -> tuple[Series, ...]:
    """Turn (category, series, value) rows into series, in the order of `colours`, then by name."""
    order = {name: place for place, name in enumerate(colours)}
    names = sorted({name for _, name, _ in rows}, key=lambda n: (order.get(n, len(order)), n))
    cells = {(category, name): value for category, name, value in rows}
    return tuple(
        Series(
            label=name.replace("_", " "),
            colour=colours.get(name, OTHER_COLOUR),
            values=tuple(cells.get((category, name)) for category in categories),
        )
        for name in names
    )
